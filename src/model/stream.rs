//! Weights that do not stay in memory: given up as soon as they were used, and read again for the next token.
//!
//! Which ones do and which do not is settled once, so that the former are not read again for the latter's sake: left to
//! itself, a system that has room for most of a model drops every page shortly before it is needed.
//!
//! What was given up comes back by being used: the system reads ahead of the threads, which go through every matrix from its
//! beginning to its end. Asking it for whole layers in advance was slower, since it then takes pages one by one.

use super::weights::Layer;
use super::{Model, Outline};
use crate::kernel::format::Matrix;
use crate::kernel::op::matmul::ROW_UNIT;

/// Bytes of the head that are in memory at once.
const HEAD_PART: usize = 16 << 20;
/// What the system reads ahead of what is used, where it is generous.
const AHEAD: u64 = 16 << 20;
/// What the system maps around a page that is used, where it has it at hand.
const AROUND: u64 = 64 << 10;

/// What of a model is given up after use.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    /// Whether each layer is.
    layers: Vec<bool>,
    head: bool,
    /// Whether the system is asked not to keep it in its cache either.
    from_cache: bool,
}

/// How many bytes of weights there are in the parts that are given up one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Of all layers and the head.
    pub all: u64,
    /// Of as much as is in memory at once when everything is streamed: a layer and what is read ahead, and the embeddings
    /// of a batch.
    pub least: u64,
}

impl Outline {
    /// The parts in which the weights can be streamed, for batches of so many tokens.
    pub fn parts(&self, batch: usize) -> Parts {
        let head = self.head_bytes;
        let largest = self.layer_bytes.iter().copied().max().unwrap_or(0).max(head.min(HEAD_PART as u64));
        Parts {
            all: self.layer_bytes.iter().sum::<u64>() + head,
            least: largest + largest.min(AHEAD) + batch as u64 * AROUND,
        }
    }
}

impl Layer<'_> {
    /// Its matrices.
    pub(super) fn matrices(&self) -> [Matrix<'_>; 7] {
        [self.q.w, self.k.w, self.v.w, self.o.w, self.gate.w, self.up.w, self.down.w]
    }
}

impl Model<'_> {
    /// From now on keeps about `keep` bytes of layers and head in memory, and gives up the rest after every use. With
    /// `from_cache` the system is asked to drop that from its cache too, so that it keeps the other part; good where memory
    /// is short, of no use where it is not. Changes no bit of a logit. Returns the bytes that will be read for every token.
    pub fn stream(&mut self, keep: u64, from_cache: bool) -> u64 {
        let (mut left, mut read) = (keep, 0);
        let mut give_up = |bytes: u64| {
            let kept = bytes <= left;
            if kept {
                left -= bytes;
            } else {
                read += bytes;
            }
            !kept
        };
        let layers = self.outline.layer_bytes.iter().map(|&bytes| give_up(bytes)).collect();
        let head = give_up(self.outline.head_bytes);
        self.stream = Some(Stream { layers, head, from_cache });
        self.file.release_all(from_cache);
        read
    }

    /// Whether some weights are read anew for every token.
    pub fn is_streamed(&self) -> bool {
        self.stream.is_some()
    }

    /// The embeddings of a batch were read, and its text in the header: as a rule a page or two.
    pub(super) fn embedded(&self) {
        let Some(stream) = &self.stream else { return };
        self.file.release_header();
        if stream.head || self.has_own_head() {
            self.file.release(self.weights.token_embd.bytes(), false);
        }
    }

    /// All members are done with the matrices of layer `l`.
    pub(super) fn after_layer(&self, l: usize) {
        let Some(stream) = self.stream.as_ref().filter(|stream| stream.layers[l]) else { return };
        for matrix in self.weights.layers[l].matrices() {
            self.file.release(matrix.bytes(), stream.from_cache);
        }
    }

    /// How many rows of the head are to be computed before they are [given up](Self::after_head); `None` if they stay.
    pub(crate) fn head_step(&self) -> Option<usize> {
        let stream = self.stream.as_ref()?;
        let rows = HEAD_PART / self.weights.output.w.row_bytes().max(1) / ROW_UNIT * ROW_UNIT;
        stream.head.then_some(rows.max(ROW_UNIT))
    }

    /// These rows of the head were used, or all of them if they are `None`.
    pub(crate) fn after_head(&self, rows: Option<std::ops::Range<usize>>) {
        let Some(stream) = self.stream.as_ref().filter(|stream| stream.head) else { return };
        let w = self.weights.output.w;
        let w = rows.map_or(w, |rows| w.part(rows));
        self.file.release(w.bytes(), stream.from_cache);
    }

    fn has_own_head(&self) -> bool {
        !std::ptr::eq(self.weights.output.w.bytes(), self.weights.token_embd.bytes())
    }
}
