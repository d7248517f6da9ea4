//! The tokens: what each stands for, and which one a stretch of text is.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::merge::NONE;

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

/// All tokens. Their pieces (the bytes they stand for) lie end to end in one buffer.
pub(super) struct Vocab {
    form: Form,
    pieces: Vec<u8>,
    /// Where the piece of each token ends.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
    /// Tokens that text can become, by piece.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// The token of a single byte, or `NONE`.
    bytes: [u32; 256],
    /// Bytes of the longest piece in the index.
    longest: usize,
}

impl Vocab {
    /// Takes in texts as the file has them, with the kind of each. `None` where there are more than 2^32 - 2 tokens
    /// or 2^32 - 1 bytes of text.
    pub fn new<'a>(form: Form, tokens: impl ExactSizeIterator<Item = (&'a [u8], Kind)>) -> Option<Self> {
        let n = tokens.len();
        if n >= NONE as usize {
            return None;
        }
        let mut vocab = Self {
            form,
            pieces: Vec::with_capacity(n.saturating_mul(8)),
            ends: Vec::with_capacity(n),
            kinds: Vec::with_capacity(n),
            index: HashTable::with_capacity(n),
            hasher: DefaultHashBuilder::default(),
            bytes: [NONE; 256],
            longest: 0,
        };
        for (text, kind) in tokens {
            vocab.push(text, kind)?;
        }
        for byte in 0..=u8::MAX {
            if vocab.bytes[usize::from(byte)] == NONE {
                vocab.bytes[usize::from(byte)] = vocab.find(&[byte]).unwrap_or(NONE);
            }
        }
        vocab.pieces.shrink_to_fit();
        Some(vocab)
    }

    fn push(&mut self, text: &[u8], kind: Kind) -> Option<()> {
        let id = self.ends.len() as u32;
        let start = self.pieces.len();
        // The piece, and whether merging can produce it.
        let merges = if kind == Kind::Byte
            && let Some(byte) = byte_of(text)
        {
            self.pieces.push(byte);
            self.bytes[usize::from(byte)] = id;
            false
        } else if kind.is_special() {
            let plain = self.form.read(text, &mut self.pieces);
            if plain && let &[byte] = &self.pieces[start..] {
                self.bytes[usize::from(byte)] = id;
            }
            let same = plain && self.pieces[start..] == *text;
            self.pieces.truncate(start);
            self.pieces.extend(text);
            same && kind == Kind::UserDefined
        } else {
            let plain = self.form.read(text, &mut self.pieces);
            if !plain {
                self.pieces.truncate(start);
                self.pieces.extend(text);
            }
            plain
        };
        self.ends.push(u32::try_from(self.pieces.len()).ok()?);
        self.kinds.push(kind);
        if merges && self.pieces.len() > start {
            self.insert(id);
        }
        Some(())
    }

    /// Of tokens with the same piece the last is kept.
    fn insert(&mut self, id: u32) {
        let Self { index, hasher, pieces, ends, longest, .. } = self;
        let piece = |id: u32| &pieces[range(ends, id)];
        let hash = hasher.hash_one(piece(id));
        *longest = (*longest).max(piece(id).len());
        match index.find_mut(hash, |&other| piece(other) == piece(id)) {
            Some(other) => *other = id,
            None => {
                index.insert_unique(hash, id, |&id| hasher.hash_one(piece(id)));
            }
        }
    }

    /// The token that this stretch of text is as a whole. Control tokens are none.
    pub fn find(&self, piece: &[u8]) -> Option<u32> {
        if piece.len() > self.longest {
            return None;
        }
        let hash = self.hasher.hash_one(piece);
        self.index.find(hash, |&id| self.piece(id) == piece).copied()
    }

    /// As [`find`](Self::find), for text as the file writes it.
    pub fn find_written(&self, text: &[u8], scratch: &mut Vec<u8>) -> Option<u32> {
        scratch.clear();
        if !self.form.read(text, scratch) {
            return None;
        }
        self.symbol(scratch)
    }

    /// As [`find`](Self::find), and for single bytes [`byte`](Self::byte).
    pub fn symbol(&self, piece: &[u8]) -> Option<u32> {
        match *piece {
            [byte] if self.form == Form::Bytes => self.byte(byte),
            _ => self.find(piece),
        }
    }

    /// The token that stands for this byte where nothing better does.
    pub fn byte(&self, byte: u8) -> Option<u32> {
        Some(self.bytes[usize::from(byte)]).filter(|&id| id != NONE)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes a token stands for; of control and user-defined tokens their text. Empty for an id out of range.
    pub fn piece(&self, id: u32) -> &[u8] {
        if (id as usize) < self.ends.len() { &self.pieces[range(&self.ends, id)] } else { &[] }
    }

    /// The kind of a token; `None` for an id out of range.
    pub fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// Makes a token a control token.
    pub fn set_control(&mut self, id: u32) {
        let hash = self.hasher.hash_one(self.piece(id));
        if let Ok(entry) = self.index.find_entry(hash, |&other| other == id) {
            entry.remove();
        }
        if let Some(kind) = self.kinds.get_mut(id as usize) {
            *kind = Kind::Control;
        }
    }

    /// Bytes of memory it takes.
    pub fn heap_bytes(&self) -> usize {
        let Self { pieces, ends, kinds, index, .. } = self;
        pieces.capacity() + 4 * ends.capacity() + kinds.capacity() + index.allocation_size()
    }

    /// Ids and pieces of the tokens that text is searched for.
    pub fn specials(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let ids = (0u32..).zip(&self.kinds).filter(|(_, kind)| kind.is_special());
        ids.map(|(id, _)| (id, self.piece(id)))
    }
}

fn range(ends: &[u32], id: u32) -> std::ops::Range<usize> {
    let end = ends[id as usize] as usize;
    let start = id.checked_sub(1).map_or(0, |before| ends[before as usize] as usize);
    start..end
}

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
mod tests {
    use super::*;

    fn vocab(form: Form, tokens: &[(&str, Kind)]) -> Vocab {
        Vocab::new(form, tokens.iter().map(|&(t, k)| (t.as_bytes(), k))).expect("small")
    }

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
    }

    #[test]
    fn pieces_are_bytes() {
        use Kind::*;
        let v =
            vocab(Form::Bytes, &[("Ã", Normal), ("Ċ", Normal), ("aĠb", Normal), ("Ā", Normal), ("", Normal)]);
        let pieces: Vec<_> = (0..5).map(|id| v.piece(id)).collect();
        assert_eq!(pieces, [&b"\xC3"[..], b"\n", b"a b", b"\0", b""]);
        assert_eq!((v.find(b"a b"), v.find(b""), v.byte(0), v.byte(b'x')), (Some(2), None, Some(3), None));
        assert_eq!((v.piece(5), v.kind(u32::MAX)), (&b""[..], None));
    }

    #[test]
    fn spaces_and_byte_tokens() {
        use Kind::*;
        let v =
            vocab(Form::Spaced, &[("▁a", Normal), ("<0xE2>", Byte), ("<s>", Control), ("▁▁", UserDefined)]);
        assert_eq!((v.piece(0), v.piece(1), v.piece(3)), (&b" a"[..], &b"\xE2"[..], "▁▁".as_bytes()));
        assert_eq!(
            (v.find(b" a"), v.byte(0xE2), v.find(b"<s>"), v.find(b"  ")),
            (Some(0), Some(1), None, None)
        );
        assert!(v.specials().eq([(2, &b"<s>"[..]), (3, "▁▁".as_bytes())]));
        let mut out = Vec::new();
        unmark_spaces(b"\xE2\x96\x81a\xE2\x96\xE2", &mut out);
        assert_eq!(out, b" a\xE2\x96\xE2");
    }

    #[test]
    fn of_equal_tokens_the_last_is_found() {
        let v = vocab(Form::Bytes, &[("ab", Kind::Normal), ("ab", Kind::Normal)]);
        assert_eq!(v.find(b"ab"), Some(1));
    }
}
