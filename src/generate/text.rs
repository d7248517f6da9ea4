//! Bytes of tokens to text that can be shown.

use super::stop::StopFilter;
use super::{Error, Listener};
use crate::tokenizer::stream::Utf8Stream;

/// Bytes of tokens on their way to the reader: whole characters, without stop strings.
pub(super) struct Text {
    characters: Utf8Stream,
    filter: StopFilter,
    ready: String,
}

impl Text {
    pub(super) fn new(stop: &[String]) -> Self {
        Text { characters: Utf8Stream::new(), filter: StopFilter::new(stop), ready: String::new() }
    }

    /// Takes a token's bytes; the stop string that became complete with them.
    pub(super) fn push(&mut self, piece: &[u8]) -> Option<String> {
        let whole = self.characters.push(piece);
        let found = self.filter.push(&whole, &mut self.ready);
        if found { self.filter.found().map(str::to_owned) } else { None }
    }

    /// The end: shows what was held back for a whole character or a stop string that did not come.
    pub(super) fn finish(&mut self) {
        if self.filter.found().is_none() {
            let whole = self.characters.finish();
            self.filter.push(&whole, &mut self.ready);
            self.filter.finish(&mut self.ready);
        }
    }

    pub(super) fn show<E: std::error::Error>(
        &mut self,
        to: &mut impl Listener,
        all: &mut String,
    ) -> Result<(), Error<E>> {
        if !self.ready.is_empty() {
            to.text(&self.ready).map_err(|source| Error::Output { source })?;
            all.push_str(&self.ready);
            self.ready.clear();
        }
        Ok(())
    }
}
