//! Bytes of tokens to whole characters.

/// Turns pieces of bytes into text as they come: what is held back is only the start of a character whose end may
/// still come. Bytes that cannot be part of a character become U+FFFD, one for each ill-formed sequence.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// At most 3 bytes between calls.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// A stream with nothing in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in the next bytes and returns all text that is whole by now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend(bytes);
        let mut text = String::new();
        let mut rest = &self.held[..];
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            rest = &rest[chunk.valid().len()..];
            if !invalid.is_empty() && invalid.len() == rest.len() && may_go_on(invalid) {
                break;
            }
            rest = &rest[invalid.len()..];
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held = rest.to_vec();
        text
    }

    /// The end: U+FFFD for what is still held back.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Whether these bytes, which end the input, are the start of a character.
fn may_go_on(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_over_four_tokens() {
        let mut stream = Utf8Stream::new();
        let said: Vec<String> = "😀!".bytes().map(|b| stream.push(&[b])).collect();
        assert_eq!(said, ["", "", "", "😀", "!"]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn dead_bytes_do_not_hold_up_what_follows() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"a\xFFb"), "a\u{FFFD}b");
        assert_eq!(stream.push(b"\xE2\x96"), "");
        assert_eq!(stream.push(b"x"), "\u{FFFD}x");
        assert_eq!(stream.push(b"\xF0\x9F"), "");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.finish(), "");
        // Never the start of a character: not held back.
        assert_eq!(stream.push(b"\xC0"), "\u{FFFD}");
        assert_eq!(stream.push(b"\x80\x80"), "\u{FFFD}\u{FFFD}");
    }

    #[test]
    fn however_it_is_cut_the_text_is_the_same() {
        let bytes =
            b"z\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xED\xA0\x80\xF4\x90\x80\x80\xE2\x82\xC3\xA9\xF0\x9F";
        let whole = String::from_utf8_lossy(bytes);
        for step in 1..=bytes.len() {
            let mut stream = Utf8Stream::new();
            let mut text: String = bytes.chunks(step).map(|c| stream.push(c)).collect();
            text += &stream.finish();
            assert_eq!(text, whole, "in steps of {step}");
        }
    }
}
