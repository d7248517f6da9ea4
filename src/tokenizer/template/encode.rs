//! Conversations to ids, with the control tokens of the template's own text only.

use super::super::special::Fragment;
use super::super::vocab::Kind;
use super::super::{Encoder, Tokenizer};
use super::{ChatOptions, ChatTemplate, Error, Message};

impl ChatTemplate {
    /// The token ids of the conversation, ready to be evaluated: one BOS at the start if the template or the metadata
    /// ask for it.
    ///
    /// Control tokens come from the template's own text alone; in a message `<|im_end|>` is text like any other. For
    /// that, before the template runs, a character that occurs nowhere else is put into every control token's text
    /// that a message contains, behind its first character, and at the end of a message that ends with the beginning
    /// of one; it is taken out again once the rendered text has been searched for tokens. Templates may thus cut,
    /// trim and examine messages as they like, and a message without such text is not changed at all.
    ///
    /// The same holds for those user-defined tokens that serve as control tokens: `<|...|>`, and all that the
    /// template mentions (`<think>`), unless the assistant has said them.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<Vec<u32>, Error> {
        let mark = unused_char(tokenizer, messages, self.source());
        let guard = Guard { tokenizer, template: self.source(), mark };
        let guarded: Vec<Message> = messages.iter().map(|m| guard.message(m)).collect();
        let text = self.render(tokenizer, &guarded, options)?;

        let mut encoder = Encoder::new(tokenizer);
        let mut marked = [0; 4];
        let mark = mark.encode_utf8(&mut marked).as_bytes();
        let mut plain = Vec::new();
        let wanted = |id| tokenizer.vocab.kind(id) == Some(Kind::UserDefined) || guard.can_break(id);
        tokenizer.specials.split(&tokenizer.vocab, text.as_bytes(), wanted, |fragment| match fragment {
            Fragment::Token(id) => encoder.token(id),
            Fragment::Text(text) => {
                plain.clear();
                remove(mark, text, &mut plain);
                if !plain.is_empty() {
                    encoder.text(&plain);
                }
            }
        });
        let mut ids = encoder.ids;
        if let Some(bos) = tokenizer.leading_bos()
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }
}

/// A noncharacter or private character that neither the messages nor the template nor a special token have.
fn unused_char(tokenizer: &Tokenizer, messages: &[Message], template: &str) -> char {
    let texts = || messages.iter().flat_map(|m| [&m.role[..], &m.content]).chain([template]);
    let specials =
        || tokenizer.vocab.specials().map(|(_, piece)| String::from_utf8_lossy(&piece).into_owned());
    let private = ['\u{FDD0}'..='\u{FDEF}', '\u{E000}'..='\u{F8FF}', '\u{F0000}'..='\u{10FFFD}'];
    let mut candidates = private.into_iter().flatten();
    let unused = candidates.find(|&c| !texts().any(|t| t.contains(c)) && !specials().any(|t| t.contains(c)));
    // A text that has all of them would have to be made for the purpose.
    unused.unwrap_or('\u{FDD0}')
}

/// Breaks up control tokens in messages.
struct Guard<'a> {
    tokenizer: &'a Tokenizer,
    template: &'a str,
    mark: char,
}

impl Guard<'_> {
    fn message(&self, message: &Message) -> Message {
        let trusted = message.role == "assistant";
        Message { role: self.text(&message.role, false), content: self.text(&message.content, trusted) }
    }

    fn text(&self, text: &str, trusted: bool) -> String {
        let vocab = &self.tokenizer.vocab;
        let is_control = |id: u32| match vocab.kind(id) {
            Some(Kind::UserDefined) => !trusted && self.can_break(id) && self.is_marker(&vocab.piece(id)),
            _ => self.can_break(id),
        };
        let mut text = text.to_owned();
        // Again as long as something is found: breaking up one token can bring another to light.
        loop {
            let mut found: Vec<usize> = Vec::new();
            let mut at = 0;
            self.tokenizer.specials.split(vocab, text.as_bytes(), is_control, |fragment| match fragment {
                Fragment::Text(between) => at += between.len(),
                Fragment::Token(id) => {
                    found.push(at);
                    at += vocab.piece(id).len();
                }
            });
            if found.is_empty() {
                break;
            }
            for start in found.into_iter().rev() {
                let first = text[start..].chars().next().map_or(0, char::len_utf8);
                text.insert(start + first, self.mark);
            }
        }
        // What follows the message must not complete a token that it has begun.
        let end = text.trim_end().len();
        let tail = &text.as_bytes()[..end];
        let begun = vocab
            .specials()
            .filter(|&(id, _)| is_control(id))
            .any(|(_, piece)| (1..piece.len()).any(|n| tail.ends_with(&piece[..n])));
        if begun {
            text.insert(end, self.mark);
        }
        text
    }

    /// Whether a character can be put into this token's text. A control token of which that is not true (there is
    /// no reason to make one of a single character) is not looked for.
    fn can_break(&self, id: u32) -> bool {
        str::from_utf8(&self.tokenizer.vocab.piece(id)).is_ok_and(|piece| piece.chars().nth(1).is_some())
    }

    /// Whether a user-defined token steers the model as control tokens do.
    fn is_marker(&self, piece: &[u8]) -> bool {
        let Ok(piece) = str::from_utf8(piece) else { return false };
        let within = |open, close| piece.starts_with(open) && piece.ends_with(close);
        let mentioned = || self.template.contains(piece);
        within("<|", "|>") || within("<｜", "｜>") || ((within("<", ">") || within("[", "]")) && mentioned())
    }
}

/// Appends `text` without `mark`.
fn remove(mark: &[u8], mut text: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = text.windows(mark.len()).position(|w| w == mark) {
        out.extend(&text[..at]);
        text = &text[at + mark.len()..];
    }
    out.extend(text);
}
