//! `twinband chat`: a conversation in the model's own template.
//!
//! Turn by turn the template makes the tokens of the whole conversation; those the model has evaluated already are kept.
//! Text does not always encode to the tokens that were sampled for it, so the answers in it are replaced by the tokens
//! they were made of ([`Memory`]): no token is evaluated twice. Where a template changes what it made before (some
//! drop the thoughts of earlier answers) evaluation starts at the first token that differs.

use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::Context as _;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use super::load::{self, Loaded, Shown};
use super::options::{self, EngineOptions, Limit, SamplingOptions};
use super::run::Printer;
use super::{Ui, interrupt, report};
use crate::generate::{Answer, Error, Request, Session, StopReason};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::template::{ChatOptions, ChatTemplate, Message};

/// Small models repeat themselves without end when they always take the likeliest token.
const DEFAULT_TEMPERATURE: f32 = 0.4;

const HELP: &str = "/clear starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer";

/// Talk with a model in its own chat template
///
/// Reads a line, streams the answer, and so on. Ctrl-C stops an answer, Ctrl-D or /exit leaves, /clear starts the
/// conversation over. When standard input is not a terminal every line of it is a message.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model file (GGUF; any part of a split set)
    model: PathBuf,

    /// The system message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Ask models that think before they answer not to
    #[arg(long)]
    no_think: bool,

    /// Use another chat template: an alternative in the file by name, a built-in one by name, or a file
    #[arg(long, value_name = "NAME|FILE")]
    template: Option<String>,

    /// At most N tokens an answer; -1 until the model ends or the context is full
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value = "1024", value_parser = options::limit, allow_negative_numbers = true)]
    tokens: Limit,

    /// End an answer before this string; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Print speed, memory and the digest of the logits on standard error after each answer
    #[arg(long)]
    stats: bool,

    #[command(flatten)]
    sampling: SamplingOptions,

    #[command(flatten)]
    engine: EngineOptions,
}

/// Talks until the input ends.
pub fn run(args: &Args, ui: &Ui) -> anyhow::Result<()> {
    let mut sampler = args.sampling.sampler(DEFAULT_TEMPERATURE, ui)?;
    let file = load::file(&args.model)?;
    let model = Loaded::new(&file, &args.engine, ui)?;
    let template = model.template(args.template.as_deref(), ui)?;
    let vocabulary = Shown { tokenizer: &model.tokenizer, special: false };
    let options = ChatOptions { enable_thinking: args.no_think.then_some(false), ..ChatOptions::default() };
    let mut session = Session::new(model.engine);
    let mut talk = Conversation::new(&template, &model.tokenizer, options, args.system.as_deref());
    let flag = interrupt::flag()?;
    let mut input = Input::new()?;
    let live = matches!(input, Input::Terminal(_));
    if live {
        ui.note(HELP);
    }
    while let Some(line) = input.line()? {
        match line.trim() {
            "" => continue,
            "/exit" => break,
            "/clear" => {
                talk.clear();
                continue;
            }
            _ => {}
        }
        let prompt = match talk.ask(&line) {
            Ok(prompt) => prompt,
            Err(error) if live => {
                talk.take_back();
                ui.warn(format_args!("{error}"));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let request = Request {
            prompt: &prompt,
            max_tokens: args.tokens.0,
            stop: &args.stop,
            batch: session.engine().batch(),
            ignore_end: false,
            digest: args.stats,
        };
        let mut printer = Printer::new(true, ui)?;
        file.check_unchanged()?;
        let answer = match session.generate(&request, &mut sampler, &vocabulary, &mut printer) {
            Ok(answer) => answer,
            Err(error @ Error::PromptTooLong { .. }) if live => {
                talk.take_back();
                ui.warn(format_args!("{error}, or start over with /clear"));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        printer.end()?;
        drop(printer);
        // The signal has ended this answer; it means nothing for the next.
        flag.store(false, Ordering::SeqCst);
        if args.stats {
            ui.stats(report::stats(&answer, session.engine()));
        }
        if answer.stop == StopReason::Context {
            ui.note(format_args!(
                "the context of {} tokens is full: /clear starts over, a larger --ctx holds more",
                session.engine().ctx()
            ));
        }
        talk.answered(&answer);
    }
    Ok(())
}

/// Where messages come from.
enum Input {
    Terminal(Box<DefaultEditor>),
    Lines(io::StdinLock<'static>),
}

impl Input {
    fn new() -> anyhow::Result<Self> {
        if io::stdin().is_terminal() {
            let editor = DefaultEditor::new().context("cannot use the terminal")?;
            Ok(Input::Terminal(Box::new(editor)))
        } else {
            Ok(Input::Lines(io::stdin().lock()))
        }
    }

    /// The next line without its end; none at the end of the input.
    fn line(&mut self) -> anyhow::Result<Option<String>> {
        match self {
            Input::Terminal(editor) => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        // A history that is full is no reason to stop.
                        let _ = editor.add_history_entry(&line);
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Eof) => return Ok(None),
                    // Ctrl-C throws the line away.
                    Err(ReadlineError::Interrupted) => {}
                    Err(error) => return Err(error).context("cannot read from the terminal"),
                }
            },
            Input::Lines(lines) => {
                let mut line = String::new();
                let n = lines.read_line(&mut line).context("cannot read standard input")?;
                Ok((n > 0).then(|| line.trim_end_matches(['\n', '\r']).to_owned()))
            }
        }
    }
}

/// The messages so far, and the tokens they are.
struct Conversation<'a> {
    template: &'a ChatTemplate,
    tokenizer: &'a Tokenizer,
    options: ChatOptions,
    messages: Vec<Message>,
    /// How many messages there are before the first question.
    opening: usize,
    memory: Memory,
}

impl<'a> Conversation<'a> {
    fn new(
        template: &'a ChatTemplate,
        tokenizer: &'a Tokenizer,
        options: ChatOptions,
        system: Option<&str>,
    ) -> Self {
        let messages: Vec<Message> = system.map(|text| Message::new("system", text)).into_iter().collect();
        let opening = messages.len();
        Conversation { template, tokenizer, options, messages, opening, memory: Memory::default() }
    }

    /// Starts over.
    fn clear(&mut self) {
        self.messages.truncate(self.opening);
        self.memory = Memory::default();
    }

    /// Adds a question; the tokens of all that was said and the beginning of the answer.
    fn ask(&mut self, text: &str) -> Result<Vec<u32>, crate::tokenizer::template::Error> {
        self.messages.push(Message::new("user", text));
        let encoded = self.template.encode(self.tokenizer, &self.messages, &self.options)?;
        Ok(self.memory.recall(encoded, |id| self.tokenizer.piece(id)))
    }

    /// Forgets the last question, which could not be answered.
    fn take_back(&mut self) {
        self.messages.pop();
    }

    /// Adds the answer to the last question.
    fn answered(&mut self, answer: &Answer) {
        if answer.tokens.is_empty() {
            self.take_back();
            return;
        }
        self.messages.push(Message::new("assistant", answer.text.as_str()));
        let shown = match answer.stop {
            StopReason::End(_) => answer.tokens.len() - 1,
            // Of the stop string there are tokens, but no text.
            StopReason::StopString(_) => 0,
            _ => answer.tokens.len(),
        };
        self.memory.remember(answer.tokens.get(..shown).unwrap_or_default(), &answer.text);
    }
}

/// The tokens of earlier turns as they were evaluated.
#[derive(Debug, Default)]
struct Memory {
    /// The last conversation as it was encoded.
    encoded: Vec<u32>,
    /// Answers in it, in order.
    answers: Vec<Said>,
    /// The tokens of the answer to it, and its text.
    last: (Vec<u32>, String),
}

/// An answer: the tokens it was made of, and those its text encodes to.
#[derive(Debug)]
struct Said {
    at: usize,
    len: usize,
    sampled: Vec<u32>,
}

impl Memory {
    /// Notes the tokens sampled in answer to the last conversation, without an end token, and the text that they are
    /// in later conversations.
    fn remember(&mut self, sampled: &[u32], text: &str) {
        self.last = (sampled.to_vec(), text.to_owned());
    }

    /// The tokens of a conversation that goes on from the last, given as it is encoded: answers as they were sampled.
    fn recall<P: AsRef<[u8]>>(&mut self, encoded: Vec<u32>, piece: impl Fn(u32) -> P) -> Vec<u32> {
        let (sampled, text) = std::mem::take(&mut self.last);
        if encoded.starts_with(&self.encoded) {
            let at = self.encoded.len();
            let rest = encoded.get(at..).filter(|_| !sampled.is_empty());
            let said = rest.and_then(|rest| prefix_of(rest, text.as_bytes(), &piece));
            self.answers.extend(said.map(|len| Said { at, len, sampled }));
        } else {
            self.answers.clear();
        }
        self.encoded = encoded;
        let mut out = Vec::new();
        let mut from = 0;
        for said in &self.answers {
            out.extend_from_slice(self.encoded.get(from..said.at).unwrap_or_default());
            out.extend_from_slice(&said.sampled);
            from = said.at + said.len;
        }
        out.extend_from_slice(self.encoded.get(from..).unwrap_or_default());
        out
    }
}

/// How many tokens at the start of `ids` show exactly `text`.
fn prefix_of<P: AsRef<[u8]>>(ids: &[u32], mut text: &[u8], piece: &impl Fn(u32) -> P) -> Option<usize> {
    let mut len = 0;
    while !text.is_empty() {
        let next = piece(*ids.get(len)?);
        let next = next.as_ref();
        if next.is_empty() {
            return None;
        }
        text = text.strip_prefix(next)?;
        len += 1;
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0 to 9 show their digit, 12 shows "12"; others nothing.
    fn piece(id: u32) -> &'static [u8] {
        const DIGITS: &[u8] = b"0123456789";
        match id {
            0..10 => &DIGITS[id as usize..][..1],
            12 => b"12",
            _ => b"",
        }
    }

    #[test]
    fn answers_are_recalled_as_they_were_sampled() {
        let mut memory = Memory::default();
        assert_eq!(memory.recall(vec![50, 7, 60], piece), [50, 7, 60]);
        // Said in two tokens, encoded as one.
        memory.remember(&[1, 2], "12");
        let second = vec![50, 7, 60, 12, 61, 50, 8, 60];
        assert_eq!(memory.recall(second.clone(), piece), [50, 7, 60, 1, 2, 61, 50, 8, 60]);
        memory.remember(&[3, 1, 2], "312");
        let third = [&second[..], &[3, 12, 61, 50, 9, 60]].concat();
        assert_eq!(memory.recall(third, piece), [50, 7, 60, 1, 2, 61, 50, 8, 60, 3, 1, 2, 61, 50, 9, 60]);
    }

    #[test]
    fn what_a_template_has_changed_is_taken_as_it_is() {
        let mut memory = Memory::default();
        memory.recall(vec![50, 7, 60], piece);
        memory.remember(&[1, 2], "12");
        // The answer's text was cut.
        let cut = vec![50, 7, 60, 1, 61, 50, 8, 60];
        assert_eq!(memory.recall(cut.clone(), piece), cut);
        memory.remember(&[1, 2], "12");
        // An earlier turn was changed: nothing of before is put into it.
        let other = vec![50, 6, 60, 1, 61, 50, 8, 60, 12, 61];
        assert_eq!(memory.recall(other.clone(), piece), other);
        memory.remember(&[1, 2], "12");
        let next = [&other[..], &[12, 61]].concat();
        assert_eq!(memory.recall(next, piece), [&other[..], &[1, 2, 61]].concat());
    }

    #[test]
    fn an_empty_answer_takes_no_place() {
        let mut memory = Memory::default();
        memory.recall(vec![50], piece);
        memory.remember(&[], "");
        assert_eq!(memory.recall(vec![50, 61, 50], piece), [50, 61, 50]);
    }
}
