//! Activations in the order in which the loops read them.

use crate::kernel::format::ActBlock;
use crate::kernel::op::quantize::{Q8, Q8Row, SUM};
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
        // Two take about as long as six, since each product waits for the one before.
        let length = match left {
            0..=2 => 2,
            3..=6 => self.most.min(6),
            _ => self.most,
        };
        self.next += length;
        (left > 0).then_some((first, length))
    }
}

/// What a kind of tiles needs of activations besides codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Elements whose codes are summed up for a word.
    pub sums: usize,
    /// What becomes of the sum.
    pub word: Word,
    /// Where two sub-blocks share a vector.
    pub paired: Option<Paired>,
}

/// What a word is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The sum times this, as an i32.
    Times(i32),
    /// The sum as an f32.
    Float,
    /// The sums of the first and of the second half, as i16.
    Halves,
}

/// Every second lane of a vector is of the second of two neighbouring sub-blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paired {
    /// Elements of a sub-block, a power of two.
    pub sub: usize,
    /// What a sub-block's sum of codes is multiplied by to get what its products begin with.
    pub start: i32,
}

/// Vectors are dealt to threads in whole numbers of this, a multiple of every length of a run.
pub const VECTOR_UNIT: usize = 24;

/// How a product wants its vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrangement {
    /// Their blocks.
    pub block: ActBlock,
    /// How many go through a product together.
    pub most: usize,
    /// What is needed of them.
    pub needs: Needs,
}

impl Arrangement {
    /// An upper bound of the words (of four bytes) of a vector of `n` elements.
    pub const fn most_words(n: usize) -> usize {
        // Codes, and one word of each kind for 32 elements, two where sub-blocks are paired.
        n / 4 + n / 32 * 4
    }

    /// The words of a vector of `n` elements: codes, sums, starts of paired sub-blocks, scales.
    fn parts(&self, n: usize) -> [usize; 4] {
        let starts = self.needs.paired.map_or(0, |paired| n / paired.sub);
        [n / 4, n / self.needs.sums, starts, n / self.block.elements()]
    }

    /// The words of a vector of `n` elements.
    pub fn words(&self, n: usize) -> usize {
        self.parts(n).into_iter().sum()
    }

    /// Arranges some vectors: all of them, or a multiple of [`VECTOR_UNIT`] from another on. In `to` each vector has the room of
    /// `stride` words, and those of a run use it from the front.
    pub fn fill(&self, x: &Q8<'_>, vectors: Range<usize>, to: &mut [[u8; 4]], stride: usize) {
        let runs = Runs { next: vectors.start, count: vectors.end, most: self.most };
        for (first, length) in runs {
            let to = &mut to[(first - vectors.start) * stride..];
            match length {
                8 => self.fill_run::<8>(x, first, to),
                6 => self.fill_run::<6>(x, first, to),
                3 => self.fill_run::<3>(x, first, to),
                2 => self.fill_run::<2>(x, first, to),
                _ => unreachable!("runs of {length}"),
            }
        }
    }

    fn fill_run<const T: usize>(&self, x: &Q8<'_>, first: usize, to: &mut [[u8; 4]]) {
        let [codes, words, starts, scales] = self.parts(x.n).map(|part| part * T);
        let (codes, to) = to.split_at_mut(codes);
        let (words, to) = to.split_at_mut(words);
        let (starts, to) = to.split_at_mut(starts);
        let scales = &mut to[..scales];
        let rows: [Option<Q8Row<'_>>; T] =
            std::array::from_fn(|t| (first + t < x.vectors()).then(|| x.vector(first + t)));
        let fours = rows.map(|row| row.map(|row| row.codes.as_chunks::<4>().0));
        let sums = rows.map(|row| row.map(|row| row.sums));
        let four = |fours: &[[i8; 4]], i: usize| {
            let [a, b, c, d] = fours[i];
            [a as u8, b as u8, c as u8, d as u8]
        };
        let total = |sums: &[i16]| sums.iter().map(|&sum| i32::from(sum)).sum::<i32>();
        side_by_side::<T, _, _>(scales, rows, |row, i| row.scales[i].to_ne_bytes());
        match self.needs.paired {
            None => side_by_side::<T, _, _>(codes, fours, four),
            Some(Paired { sub, start }) => {
                let (other, per) = (sub / 4, sub / SUM);
                side_by_side::<T, _, _>(codes.as_chunks_mut::<2>().0, fours, |fours, i| {
                    // Powers of two: no divisions.
                    let at = i + (i & !(other - 1));
                    [four(fours, at), four(fours, at + other)]
                });
                side_by_side::<T, _, _>(starts.as_chunks_mut::<2>().0, sums, |sums, i| {
                    let (one, other) = sums[2 * i * per..][..2 * per].split_at(per);
                    [(start * total(one)).to_ne_bytes(), (start * total(other)).to_ne_bytes()]
                });
            }
        }
        let per = self.needs.sums / SUM;
        match self.needs.word {
            Word::Times(factor) => side_by_side::<T, _, _>(words, sums, |sums, i| {
                (factor * total(&sums[i * per..][..per])).to_ne_bytes()
            }),
            Word::Float => side_by_side::<T, _, _>(words, sums, |sums, i| {
                (total(&sums[i * per..][..per]) as f32).to_ne_bytes()
            }),
            Word::Halves => side_by_side::<T, _, _>(words, sums, |sums, i| {
                let (first, second) = sums[i * per..][..per].split_at(per / 2);
                let ([a, b], [c, d]) =
                    ((total(first) as i16).to_ne_bytes(), (total(second) as i16).to_ne_bytes());
                [a, b, c, d]
            }),
        }
    }
}

/// Quantised activations that were arranged, run after run. In a run the vectors lie side by side: for every 4 elements the codes
/// of all vectors, then their sums, then their scales. A run that is longer than the vectors that are left has zeros.
#[derive(Clone, Copy)]
pub struct Panel<'a> {
    parts: [usize; 4],
    stride: usize,
    words: &'a [[u8; 4]],
}

impl<'a> Panel<'a> {
    /// What [`Arrangement::fill`] made of all vectors of `n` elements.
    pub fn new(arrangement: &Arrangement, n: usize, words: &'a [[u8; 4]], stride: usize) -> Self {
        Self { parts: arrangement.parts(n), stride, words }
    }

    /// The run of `length` from vector `first` on.
    #[inline(always)]
    pub fn run(&self, first: usize, length: usize) -> Run<'a> {
        let [codes, words, starts, scales] = self.parts.map(|part| part * length);
        let (codes, rest) = self.words[first * self.stride..].split_at(codes);
        let (words, rest) = rest.split_at(words);
        let (starts, rest) = rest.split_at(starts);
        Run { codes, words, starts: starts.as_chunks().0, scales: &rest[..scales] }
    }
}

/// A run of `T` vectors.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// `[n / 4][T]`; of paired sub-blocks `[n / 8][T][2]`: four of one, four of the other.
    pub codes: &'a [[u8; 4]],
    /// `[n / sums][T]`
    pub words: &'a [[u8; 4]],
    /// `[n / 2 sub][T]`: what the products of paired sub-blocks begin with.
    pub starts: &'a [[[u8; 4]; 2]],
    /// `[n / block][T]`, f32.
    pub scales: &'a [[u8; 4]],
}

/// Writes elements of `T` rows side by side, row by row number `i` of each: those of a row that is not there are zeros.
#[inline(always)]
fn side_by_side<const T: usize, R: Copy, E: Copy + Default>(
    to: &mut [E],
    rows: [Option<R>; T],
    element: impl Fn(R, usize) -> E,
) {
    let (to, _) = to.as_chunks_mut::<T>();
    if let (true, Some(some)) = (rows.iter().all(Option::is_some), rows[0]) {
        // The usual case: without a question for each element.
        // (Loops: what `map` of an array calls is not always inlined.)
        let rows = rows.map(|row| row.unwrap_or(some));
        for (i, to) in to.iter_mut().enumerate() {
            for (to, row) in to.iter_mut().zip(rows) {
                *to = element(row, i);
            }
        }
        return;
    }
    for (i, to) in to.iter_mut().enumerate() {
        for (to, row) in to.iter_mut().zip(rows) {
            *to = row.map_or(E::default(), |row| element(row, i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::format::{self, Matrix};
    use crate::kernel::isa::Isa;
    use crate::kernel::op::matmul::arrangement;
    use crate::kernel::op::quantize::Quantised;

    fn arrangements() -> impl Iterator<Item = Arrangement> {
        let of = |isa| {
            format::all().filter_map(move |format| {
                let w = Matrix::new(format, &[], 0, 256).expect("no rows");
                arrangement(isa, false, w, 9)
            })
        };
        Isa::all().into_iter().flat_map(of)
    }

    #[test]
    fn there_is_room_for_every_arrangement() {
        for arrangement in arrangements() {
            for n in (256..4096).step_by(256) {
                assert!(arrangement.words(n) <= Arrangement::most_words(n), "{arrangement:?}");
            }
            assert!(VECTOR_UNIT.is_multiple_of(arrangement.most), "{arrangement:?}");
        }
    }

    #[test]
    fn vectors_arranged_in_parts_are_those_arranged_at_once() {
        let (n, most) = (512, 4 * VECTOR_UNIT);
        let x: Vec<f32> = (0..n * most).map(|i| (i * 7919 % 401) as f32 - 200.0).collect();
        // The last run has all lengths that it can have, and the vectors of each.
        for (arrangement, count) in arrangements().flat_map(|a| (3 * VECTOR_UNIT..most).map(move |n| (a, n)))
        {
            let x = Quantised::new(Isa::Scalar, arrangement.block, n, &x[..n * count]);
            let (x, words) = (x.q8(), arrangement.words(n));
            let room = count.next_multiple_of(VECTOR_UNIT) * words;
            let (mut once, mut parts) = (vec![[0; 4]; room], vec![[1; 4]; room]);
            arrangement.fill(&x, 0..count, &mut once, words);
            for part in [0..VECTOR_UNIT, VECTOR_UNIT..3 * VECTOR_UNIT, 3 * VECTOR_UNIT..count] {
                let to = &mut parts[part.start * words..];
                arrangement.fill(&x, part, to, words);
            }
            let panels =
                [&once, &parts].map(|words| Panel::new(&arrangement, n, words, arrangement.words(n)));
            let mut next = 0;
            for (first, length) in Runs::new(count, arrangement.most) {
                let [once, parts] = panels.map(|panel| panel.run(first, length));
                assert!(once.codes == parts.codes && once.words == parts.words, "{arrangement:?}");
                assert!(once.starts == parts.starts && once.scales == parts.scales, "{arrangement:?}");
                assert_eq!(first, next);
                next += length;
            }
            assert!((count..=count.next_multiple_of(VECTOR_UNIT)).contains(&next), "{count}: {next}");
        }
    }
}
