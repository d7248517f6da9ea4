//! Activations in the order in which the loops read them.

use crate::kernel::op::quantize::{Q8, SUM};
use std::ops::Range;

/// The number and the length of each run of vectors that go through a product together.
#[derive(Clone)]
pub struct Runs {
    next: usize,
    count: usize,
    most: usize,
}

impl Runs {
    /// Of `count` vectors, `most` at a time. The last run may be longer than what is left.
    pub fn new(count: usize, most: usize) -> Self {
        Self { next: 0, count, most }
    }
}

impl Iterator for Runs {
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<(usize, usize)> {
        let (first, left) = (self.next, self.count - self.next.min(self.count));
        let length = if left > 2 { self.most } else { 2 };
        self.next += length;
        (left > 0).then_some((first, length))
    }
}

/// Quantised activations, run after run. In a run the vectors lie side by side: for every 4 elements the codes of all vectors,
/// then their sums, then their scales. A run that is longer than the vectors that are left has zeros.
#[derive(Default)]
pub struct Panel {
    /// Elements of a vector.
    n: usize,
    /// Elements that share a scale.
    block: usize,
    /// Elements that share a sum.
    sums: usize,
    codes: Vec<[u8; 4]>,
    words: Vec<[u8; 4]>,
    scales: Vec<f32>,
}

/// A run of `T` vectors.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// `[n / 4][T]`
    pub codes: &'a [[u8; 4]],
    /// `[n / sums][T]`: what the format makes of the sums.
    pub words: &'a [[u8; 4]],
    /// `[n / block][T]`
    pub scales: &'a [f32],
}

impl Panel {
    /// Arranges `x` for runs of `most`, with words made of the sums of `sums` elements each; that of nothing is 0.
    pub fn fill(&mut self, x: &Q8<'_>, most: usize, sums: usize, word: impl Fn(&[i16]) -> [u8; 4]) {
        let runs = Runs::new(x.vectors(), most);
        let room = runs.clone().map(|(_, length)| length).sum::<usize>();
        (self.n, self.block, self.sums) = (x.n, x.block.elements(), sums);
        self.codes.resize(room * (self.n / 4), [0; 4]);
        self.words.resize(room * (self.n / sums), [0; 4]);
        self.scales.resize(room * (self.n / self.block), 0.0);
        for (first, length) in runs {
            let [codes, words, scales] = self.parts(first, length);
            let (codes, words) = (&mut self.codes[codes], &mut self.words[words]);
            let scales = &mut self.scales[scales];
            for t in 0..length {
                let codes = codes[t..].iter_mut().step_by(length);
                let words = words[t..].iter_mut().step_by(length);
                let scales = scales[t..].iter_mut().step_by(length);
                if first + t >= x.vectors() {
                    codes.for_each(|to| *to = [0; 4]);
                    words.for_each(|to| *to = [0; 4]);
                    scales.for_each(|to| *to = 0.0);
                    continue;
                }
                let row = x.vector(first + t);
                for (to, from) in codes.zip(row.codes.as_chunks::<4>().0) {
                    *to = from.map(|code| code as u8);
                }
                for (to, from) in words.zip(row.sums.chunks_exact(sums / SUM)) {
                    *to = word(from);
                }
                for (to, &from) in scales.zip(row.scales) {
                    *to = from;
                }
            }
        }
    }

    /// The run of `length` from vector `first` on.
    #[inline(always)]
    pub fn run(&self, first: usize, length: usize) -> Run<'_> {
        let [codes, words, scales] = self.parts(first, length);
        Run { codes: &self.codes[codes], words: &self.words[words], scales: &self.scales[scales] }
    }

    /// Where codes, words and scales of the run of `length` from vector `first` on lie.
    #[inline(always)]
    fn parts(&self, first: usize, length: usize) -> [Range<usize>; 3] {
        [4, self.sums, self.block].map(|step| first * (self.n / step)..(first + length) * (self.n / step))
    }
}
