//! Characters and the classes the pre-tokenizers tell apart.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// What a pre-tokenizer sees of a character: its Unicode general category, letters by case; white space apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Lu, Lt
    Upper,
    /// Ll
    Lower,
    /// Lm, Lo: letters without case
    Uncased,
    /// Mn, Mc, Me
    Mark,
    /// Nd, Nl, No
    Number,
    /// P*
    Punct,
    /// S*, and every byte that is not UTF-8 (U+FFFD, which others put in its place, is a symbol)
    Symbol,
    /// White_Space, `\s`
    Space,
    /// controls, formats, unassigned
    Other,
}

impl Class {
    /// `\p{L}`
    pub fn is_letter(self) -> bool {
        matches!(self, Class::Upper | Class::Lower | Class::Uncased)
    }
}

const ASCII: [Class; 128] = {
    let mut table = [Class::Other; 128];
    let mut b = 0;
    while b < 128 {
        let byte = b as u8;
        table[b] = match byte {
            b'A'..=b'Z' => Class::Upper,
            b'a'..=b'z' => Class::Lower,
            b'0'..=b'9' => Class::Number,
            b'\t'..=b'\r' | b' ' => Class::Space,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => Class::Symbol,
            b'!'..=b'~' => Class::Punct,
            _ => Class::Other,
        };
        b += 1;
    }
    table
};

/// The character at `at` and its length in bytes; `None` in place of a byte that is not UTF-8. `at` is in range.
pub(in crate::tokenizer) fn char_at(text: &[u8], at: usize) -> (Option<char>, usize) {
    let lead = text[at];
    let len = match lead {
        0x00..=0x7F => return (Some(char::from(lead)), 1),
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => return (None, 1),
    };
    let decoded = text.get(at..at + len).and_then(|bytes| std::str::from_utf8(bytes).ok());
    match decoded.and_then(|s| s.chars().next()) {
        Some(c) => (Some(c), len),
        None => (None, 1),
    }
}

/// The class of the character at `at` and its length in bytes; `None` at the end of the text.
pub(super) fn class_at(text: &[u8], at: usize) -> Option<(Class, usize)> {
    let lead = *text.get(at)?;
    if let Some(&class) = ASCII.get(usize::from(lead)) {
        return Some((class, 1));
    }
    let (c, len) = char_at(text, at);
    Some((c.map_or(Class::Symbol, class_of), len))
}

fn class_of(c: char) -> Class {
    if c.is_whitespace() {
        return Class::Space;
    }
    match get_general_category(c) {
        Category::UppercaseLetter | Category::TitlecaseLetter => Class::Upper,
        Category::LowercaseLetter => Class::Lower,
        Category::ModifierLetter | Category::OtherLetter => Class::Uncased,
        Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark => Class::Mark,
        Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber => Class::Number,
        Category::ConnectorPunctuation
        | Category::DashPunctuation
        | Category::OpenPunctuation
        | Category::ClosePunctuation
        | Category::InitialPunctuation
        | Category::FinalPunctuation
        | Category::OtherPunctuation => Class::Punct,
        Category::MathSymbol
        | Category::CurrencySymbol
        | Category::ModifierSymbol
        | Category::OtherSymbol => Class::Symbol,
        _ => Class::Other,
    }
}

/// The end of the run of characters from `from` on whose class satisfies `is`.
pub(super) fn run(text: &[u8], from: usize, is: impl Fn(Class) -> bool) -> usize {
    let mut at = from;
    while let Some((class, len)) = class_at(text, at) {
        if !is(class) {
            break;
        }
        at += len;
    }
    at
}

/// A maximal run of white space at the start of a text.
pub(super) struct Blank {
    /// where it ends
    pub end: usize,
    /// where its last character starts
    pub last: usize,
    /// the end of its last CR or LF, 0 where it has none
    pub newline: usize,
}

/// The white space at the start of `text`: all zero where there is none.
pub(super) fn blank(text: &[u8]) -> Blank {
    let mut blank = Blank { end: 0, last: 0, newline: 0 };
    while let Some((Class::Space, len)) = class_at(text, blank.end) {
        blank.last = blank.end;
        blank.end += len;
        if matches!(text[blank.last], b'\r' | b'\n') {
            blank.newline = blank.end;
        }
    }
    blank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_table_agrees_with_unicode() {
        for b in 0..128u8 {
            assert_eq!(ASCII[usize::from(b)], class_of(char::from(b)), "byte {b}");
        }
    }

    #[test]
    fn dead_bytes_are_one_symbol_each() {
        for text in [&b"\xFF"[..], b"\xC3", b"\xE2\x96", b"\xF0\x9F\x98", b"\x80a", b"\xED\xA0\x80"] {
            assert_eq!(class_at(text, 0), Some((Class::Symbol, 1)), "{text:?}");
        }
        assert_eq!(class_at("é".as_bytes(), 0), Some((Class::Lower, 2)));
        assert_eq!(class_at(b"", 0), None);
    }
}
