//! The tokens: what each stands for, and which one a stretch of text is.

use std::borrow::Cow;
use std::hash::BuildHasher as _;
use std::sync::OnceLock;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::merge::NONE;
use crate::gguf::{Numbers, Texts};

/// How a file writes token texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Every byte as one printable character (`Ġ` for a space): byte-level vocabularies.
    Bytes,
    /// As it is, with `▁` (U+2581) for a space: SentencePiece-style vocabularies.
    Spaced,
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Normal = 1,
    Unknown,
    /// Steers the model, has no text of its own: never made from a user's text.
    Control,
    /// Found in any text before anything else.
    UserDefined,
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

impl Kind {
    /// The kind with this code in `tokenizer.ggml.token_type`.
    pub fn from_code(code: i64) -> Option<Self> {
        const ALL: [Kind; 6] =
            [Kind::Normal, Kind::Unknown, Kind::Control, Kind::UserDefined, Kind::Unused, Kind::Byte];
        ALL.get(usize::try_from(code.checked_sub(1)?).ok()?).copied()
    }

    /// Whether text is searched for tokens of this kind before it is cut and merged.
    pub fn is_special(self) -> bool {
        matches!(self, Kind::Control | Kind::UserDefined | Kind::Unknown)
    }
}

/// The bytes of U+2581, which stands for a space.
pub(super) const SPACE_MARK: &[u8] = "\u{2581}".as_bytes();

/// The kinds of all tokens.
enum Kinds {
    /// As the file has them.
    File(Numbers),
    /// The file has none: by their looks.
    Guess,
}

impl Kinds {
    /// The kind of a token with this text; `None` for a code that is not known.
    #[inline]
    fn of(&self, form: Form, id: u32, text: &[u8]) -> Option<Kind> {
        match self {
            Kinds::File(codes) => codes.integer(id as usize).and_then(Kind::from_code),
            Kinds::Guess => Some(match text {
                [b'<', b'|', .., b'|', b'>'] => Kind::Control,
                _ if form == Form::Spaced && byte_of(text).is_some() => Kind::Byte,
                _ => Kind::Normal,
            }),
        }
    }
}

/// All tokens. Texts and kinds stay in the file; what is kept is where they are.
///
/// Text is looked up as the file writes it ([`Form::write`]), so that nothing of the file has to be rewritten.
pub(super) struct Vocab {
    form: Form,
    texts: Texts,
    /// Position of each token's text.
    starts: Vec<u32>,
    kinds: Kinds,
    /// Tokens that have become control tokens, in order.
    made_control: Vec<u32>,
    /// Tokens that text is searched for, in order.
    specials: Vec<u32>,
    /// Tokens that text can become, by text. Built when it is first needed.
    index: OnceLock<HashTable<u32>>,
    hasher: DefaultHashBuilder,
    /// The token of a single byte, or `NONE`.
    bytes: [u32; 256],
    /// Bytes of the longest text.
    longest: usize,
}

impl Vocab {
    /// Takes in texts and the code of the kind of each, if the file has them: as many. Says how many codes are not known:
    /// those tokens are normal ones. `seen` is shown every token. `None` where there are more than 2^32 - 2 tokens or 2^32 - 1
    /// bytes of text.
    pub fn new(
        form: Form,
        texts: Texts,
        codes: Option<Numbers>,
        mut seen: impl FnMut(u32, &[u8]),
    ) -> Option<(Self, usize)> {
        let n = texts.len();
        if n >= NONE as usize || !texts.has_positions() {
            return None;
        }
        let kinds = codes.map_or(Kinds::Guess, Kinds::File);
        let mut starts = Vec::with_capacity(n);
        let (mut bytes, mut single, mut specials) = ([NONE; 256], [NONE; 256], Vec::new());
        let (mut longest, mut unknown) = (0, 0);
        let mut piece = Vec::new();
        for (id, (start, text)) in (0..).zip(texts.iter()) {
            starts.push(start);
            seen(id, text);
            longest = longest.max(text.len());
            let kind = kinds.of(form, id, text);
            unknown += usize::from(kind.is_none());
            let kind = kind.unwrap_or(Kind::Normal);
            if kind.is_special() {
                specials.push(id);
            }
            if kind == Kind::Byte
                && let Some(byte) = byte_of(text)
            {
                bytes[usize::from(byte)] = id;
                continue;
            }
            // One character of the alphabet or the mark of a space: no more than these stand for a single byte.
            if text.len() > SPACE_MARK.len() {
                continue;
            }
            piece.clear();
            if form.read(text, &mut piece)
                && let &[byte] = &piece[..]
            {
                if kind.is_special() {
                    bytes[usize::from(byte)] = id;
                }
                if form.is_found(kind, text) {
                    single[usize::from(byte)] = id;
                }
            }
        }
        for (byte, single) in bytes.iter_mut().zip(single) {
            *byte = if *byte == NONE { single } else { *byte };
        }
        let (index, hasher) = (OnceLock::new(), DefaultHashBuilder::default());
        let made_control = Vec::new();
        let vocab =
            Self { form, texts, starts, kinds, made_control, specials, index, hasher, bytes, longest };
        Some((vocab, unknown))
    }

    /// The table of the texts that merging can produce, and whole pieces be. Of equal texts the last is kept.
    pub fn index(&self) -> &HashTable<u32> {
        self.index.get_or_init(|| {
            let mut index = HashTable::with_capacity(self.len());
            for (id, (_, text)) in (0..).zip(self.texts.iter()) {
                if !self.form.is_found(self.kind_in_file(id, text), text) {
                    continue;
                }
                let hash = self.hasher.hash_one(text);
                match index.find_mut(hash, |&other| self.text(other) == text) {
                    Some(other) => *other = id,
                    None => {
                        index.insert_unique(hash, id, |&id| self.hasher.hash_one(self.text(id)));
                    }
                }
            }
            index
        })
    }

    /// The token that a stretch of text, [written](Form::write) as the file writes it, is as a whole. Control tokens are
    /// none.
    pub fn find(&self, text: &[u8]) -> Option<u32> {
        if text.len() > self.longest {
            return None;
        }
        let hash = self.hasher.hash_one(text);
        let found = self.index().find(hash, |&id| self.text(id) == text).copied();
        found.filter(|id| self.made_control.binary_search(id).is_err())
    }

    /// As [`find`](Self::find), and for single bytes [`byte`](Self::byte). The text may be any of the file.
    pub fn symbol(&self, text: &[u8], scratch: &mut Vec<u8>) -> Option<u32> {
        scratch.clear();
        if !self.form.read(text, scratch) {
            return None;
        }
        match scratch[..] {
            [byte] if self.form == Form::Bytes => self.byte(byte),
            _ => self.find(text),
        }
    }

    /// The token that stands for this byte where nothing better does.
    pub fn byte(&self, byte: u8) -> Option<u32> {
        Some(self.bytes[usize::from(byte)]).filter(|&id| id != NONE)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// How texts are written.
    pub fn form(&self) -> Form {
        self.form
    }

    /// A token's text as the file has it; empty for an id out of range.
    fn text(&self, id: u32) -> &[u8] {
        self.starts.get(id as usize).map_or(&[], |&start| self.texts.at(start))
    }

    /// The bytes a token stands for; of control and user-defined tokens their text. Empty for an id out of range.
    pub fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        let text = self.text(id);
        match self.kind_in_file(id, text) {
            Kind::Byte if let Some(byte) = byte_of(text) => Cow::Borrowed(&BYTES[usize::from(byte)..][..1]),
            kind if kind.is_special() => Cow::Borrowed(text),
            _ => self.form.piece(text),
        }
    }

    /// The kind of a token; `None` for an id out of range.
    pub fn kind(&self, id: u32) -> Option<Kind> {
        if id as usize >= self.len() {
            return None;
        }
        if !self.made_control.is_empty() && self.made_control.binary_search(&id).is_ok() {
            return Some(Kind::Control);
        }
        Some(self.kind_in_file(id, self.text(id)))
    }

    fn kind_in_file(&self, id: u32, text: &[u8]) -> Kind {
        self.kinds.of(self.form, id, text).unwrap_or(Kind::Normal)
    }

    /// Whether text can become this token, were it not made a control token.
    pub fn is_found(&self, id: u32) -> bool {
        let text = self.text(id);
        self.form.is_found(self.kind_in_file(id, text), text)
    }

    /// Makes a token a control token.
    pub fn set_control(&mut self, id: u32) {
        for list in [&mut self.made_control, &mut self.specials] {
            if let Err(at) = list.binary_search(&id) {
                list.insert(at, id);
            }
        }
    }

    /// Bytes of memory it takes once text has been encoded.
    pub fn heap_bytes(&self) -> usize {
        let Self { starts, specials, made_control, index, .. } = self;
        let index = index.get().map_or_else(
            || HashTable::<u32>::with_capacity(self.len()).allocation_size(),
            HashTable::allocation_size,
        );
        4 * (starts.capacity() + specials.capacity() + made_control.capacity()) + index
    }

    /// Ids and pieces of the tokens that text is searched for.
    pub fn specials(&self) -> impl Iterator<Item = (u32, Cow<'_, [u8]>)> {
        self.specials.iter().map(|&id| (id, self.piece(id)))
    }
}

/// Every byte.
static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        bytes[byte] = byte as u8;
        byte += 1;
    }
    bytes
};

/// The byte that `<0xNN>` stands for.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let [a, b] = *digits else { return None };
    let (a, b) = (char::from(a).to_digit(16)?, char::from(b).to_digit(16)?);
    Some((a * 16 + b) as u8)
}

impl Form {
    /// Appends the bytes that a text of the file stands for. False if the text is not of this form.
    pub fn read(self, text: &[u8], out: &mut Vec<u8>) -> bool {
        match self {
            Form::Bytes => read_bytes(text, out),
            Form::Spaced => {
                unmark_spaces(text, out);
                // No text to be merged has a space in it: each has become a mark before.
                !text.contains(&b' ')
            }
        }
    }

    /// Appends bytes of a text as the file writes them: the opposite of [`read`](Self::read).
    pub fn write(self, text: &[u8], out: &mut Vec<u8>) {
        match self {
            Form::Bytes => {
                for &byte in text {
                    let (letter, len) = LETTER_OF[usize::from(byte)];
                    out.extend(&letter[..usize::from(len)]);
                }
            }
            Form::Spaced => {
                for &byte in text {
                    match byte {
                        b' ' => out.extend(SPACE_MARK),
                        _ => out.push(byte),
                    }
                }
            }
        }
    }

    /// What a text of the file stands for; one that is not of this form for itself.
    fn piece(self, text: &[u8]) -> Cow<'_, [u8]> {
        let as_it_is = match self {
            Form::Bytes => text.is_ascii(),
            Form::Spaced => !text.contains(&SPACE_MARK[0]),
        };
        let mut piece = Vec::new();
        if !as_it_is && self.read(text, &mut piece) { Cow::Owned(piece) } else { Cow::Borrowed(text) }
    }

    /// Whether text can become a token of this kind with this text by merging, or as a whole piece. (One that is not of
    /// this form is found by nothing: all that is looked up is.)
    fn is_found(self, kind: Kind, text: &[u8]) -> bool {
        match kind {
            Kind::Control | Kind::Unknown => false,
            // Only where the search for it and merging find the same.
            Kind::UserDefined => {
                let as_it_is = |&byte: &u8| match self {
                    Form::Bytes => matches!(byte, 0x21..=0x7E),
                    Form::Spaced => byte != b' ',
                };
                let marked = self == Form::Spaced && text.windows(SPACE_MARK.len()).any(|w| w == SPACE_MARK);
                !text.is_empty() && text.iter().all(as_it_is) && !marked
            }
            Kind::Byte => byte_of(text).is_none() && !text.is_empty(),
            Kind::Normal | Kind::Unused => !text.is_empty(),
        }
    }
}

/// Appends `text` with a space for every `▁`.
pub(super) fn unmark_spaces(mut text: &[u8], out: &mut Vec<u8>) {
    while let Some(at) = text.iter().position(|&b| b == SPACE_MARK[0]) {
        let (before, rest) = text.split_at(at);
        out.extend(before);
        match rest.strip_prefix(SPACE_MARK) {
            Some(after) => {
                out.push(b' ');
                text = after;
            }
            None => {
                out.push(rest[0]);
                text = &rest[1..];
            }
        }
    }
    out.extend(text);
}

/// The byte of each character of the byte alphabet, which ends before U+0144: printable Latin-1 stands for itself,
/// the other 68 bytes are U+0100 and up in order.
const BYTE_OF: [Option<u8>; 0x144] = {
    let mut table = [None; 0x144];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        if matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
            table[byte] = Some(byte as u8);
        } else {
            table[next] = Some(byte as u8);
            next += 1;
        }
        byte += 1;
    }
    table
};

/// The character of each byte in the byte alphabet: its bytes in UTF-8, and how many they are.
const LETTER_OF: [([u8; 2], u8); 256] = {
    let mut table = [([0; 2], 0); 256];
    let mut c = 0;
    while c < BYTE_OF.len() {
        if let Some(byte) = BYTE_OF[c] {
            table[byte as usize] = if c < 0x80 {
                ([c as u8, 0], 1)
            } else {
                ([0xC0 | (c >> 6) as u8, 0x80 | (c & 0x3F) as u8], 2)
            };
        }
        c += 1;
    }
    table
};

fn read_bytes(text: &[u8], out: &mut Vec<u8>) -> bool {
    let mut at = 0;
    while at < text.len() {
        let (c, len) = match text[at] {
            ascii @ 0..=0x7F => (usize::from(ascii), 1),
            lead @ 0xC2..=0xC5 => {
                let Some(&next @ 0x80..=0xBF) = text.get(at + 1) else { return false };
                (usize::from(lead & 0x1F) << 6 | usize::from(next & 0x3F), 2)
            }
            _ => return false,
        };
        let Some(Some(byte)) = BYTE_OF.get(c) else { return false };
        out.push(*byte);
        at += len;
    }
    true
}

#[cfg(test)]
impl Vocab {
    /// A vocabulary of these tokens.
    pub fn of(form: Form, tokens: &[(&str, Kind)]) -> Self {
        let mut writer = crate::gguf::write::Writer::new();
        writer.strings("texts", &tokens.iter().map(|(text, _)| text.as_bytes()).collect::<Vec<_>>());
        writer.i32s("kinds", &tokens.iter().map(|&(_, kind)| kind as i32).collect::<Vec<_>>());
        let meta = crate::gguf::Meta::of(&writer).expect("good metadata");
        let texts = meta.texts("texts").ok().flatten().expect("strings");
        let codes = meta.integers("kinds").ok().flatten();
        Self::new(form, texts, codes, |_, _| {}).expect("small").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_one_to_one() {
        let mut seen = [false; 256];
        for byte in BYTE_OF.iter().flatten() {
            assert!(!std::mem::replace(&mut seen[usize::from(*byte)], true));
        }
        assert!(seen.iter().all(|&s| s));
        let mut out = Vec::new();
        assert!(read_bytes("ĠHelloĊÃ©".as_bytes(), &mut out));
        assert_eq!(out, " Hello\né".as_bytes());
        assert!(!read_bytes(b"a b", &mut out) && !read_bytes("世".as_bytes(), &mut out));
        let (mut written, mut read) = (Vec::new(), Vec::new());
        Form::Bytes.write(&BYTES, &mut written);
        assert!(str::from_utf8(&written).is_ok_and(|text| text.contains("ABC") && text.contains('Ġ')));
        assert!(read_bytes(&written, &mut read) && read == BYTES);
    }

    #[test]
    fn pieces_are_bytes() {
        use Kind::*;
        let v = Vocab::of(
            Form::Bytes,
            &[("Ã", Normal), ("Ċ", Normal), ("aĠb", Normal), ("Ā", Normal), ("", Normal), ("a b", Normal)],
        );
        let pieces: Vec<_> = (0..6).map(|id| v.piece(id)).collect();
        assert_eq!(pieces, [&b"\xC3"[..], b"\n", b"a b", b"\0", b"", b"a b"]);
        assert_eq!((v.find("aĠb".as_bytes()), v.find(b"")), (Some(2), None));
        assert_eq!((v.byte(0), v.byte(b'x'), v.byte(b'\n')), (Some(3), None, Some(1)));
        assert_eq!((&v.piece(6)[..], v.kind(u32::MAX)), (&b""[..], None));
        let mut scratch = Vec::new();
        let mut symbol = |text: &str| v.symbol(text.as_bytes(), &mut scratch);
        assert_eq!((symbol("Ã"), symbol("aĠb"), symbol("a b"), symbol("b")), (Some(0), Some(2), None, None));
    }

    #[test]
    fn spaces_and_byte_tokens() {
        use Kind::*;
        let mut v = Vocab::of(
            Form::Spaced,
            &[("▁a", Normal), ("<0xE2>", Byte), ("<s>", Control), ("▁▁", UserDefined), ("b", Normal)],
        );
        assert_eq!(
            (&v.piece(0)[..], &v.piece(1)[..], &v.piece(3)[..]),
            (&b" a"[..], &b"\xE2"[..], "▁▁".as_bytes())
        );
        let find = |text: &str| v.find(text.as_bytes());
        assert_eq!((find("▁a"), v.byte(0xE2), find("<s>"), find("▁▁")), (Some(0), Some(1), None, None));
        assert_eq!(find("b"), Some(4));
        v.set_control(4);
        assert_eq!((v.find(b"b"), v.kind(4), &v.piece(4)[..]), (None, Some(Control), &b"b"[..]));
        let specials: Vec<_> = v.specials().map(|(id, piece)| (id, piece.into_owned())).collect();
        let expected = [(2, "<s>"), (3, "▁▁"), (4, "b")].map(|(id, text)| (id, text.as_bytes().to_vec()));
        assert_eq!(specials, expected);
        let (mut out, mut written) = (Vec::new(), Vec::new());
        unmark_spaces(b"\xE2\x96\x81a\xE2\x96\xE2", &mut out);
        assert_eq!(out, b" a\xE2\x96\xE2");
        Form::Spaced.write(&out, &mut written);
        assert_eq!(written, b"\xE2\x96\x81a\xE2\x96\xE2");
    }

    #[test]
    fn of_equal_tokens_the_last_is_found() {
        let mut v = Vocab::of(Form::Bytes, &[("ab", Kind::Normal), ("ab", Kind::Normal)]);
        assert_eq!(v.find(b"ab"), Some(1));
        v.set_control(1);
        assert_eq!(v.find(b"ab"), None);
    }

    #[test]
    fn memory_is_known_before_it_is_taken() {
        let texts: Vec<String> = (0..1000).map(|i| format!("t{i}")).collect();
        let tokens: Vec<_> = texts.iter().map(|text| (&text[..], Kind::Normal)).collect();
        let v = Vocab::of(Form::Bytes, &tokens);
        let before = v.heap_bytes();
        assert_eq!(v.find(b"t999"), Some(999));
        assert_eq!(v.heap_bytes(), before);
    }
}
