//! Activations in the order in which the loops read them.

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
        let length = if left > 2 { self.most } else { 2 };
        self.next += length;
        (left > 0).then_some((first, length))
    }
}

/// What a kind of tiles needs of activations besides codes and scales.
#[derive(Clone, Copy)]
pub struct Needs {
    /// Elements whose codes are summed up for a word.
    pub sums: usize,
    /// What becomes of the sum.
    pub word: Word,
    /// Where two sub-blocks share a vector.
    pub paired: Option<Paired>,
}

/// What a word is made of.
#[derive(Clone, Copy)]
pub enum Word {
    /// The sum times this, as an i32.
    Times(i32),
    /// The sum as an f32.
    Float,
    /// The sums of the first and of the second half, as i16.
    Halves,
}

/// Every second lane of a vector is of the second of two neighbouring sub-blocks.
#[derive(Clone, Copy)]
pub struct Paired {
    /// Elements of a sub-block.
    pub sub: usize,
    /// What a sub-block's sum of codes is multiplied by to get what its products begin with.
    pub start: i32,
}

/// Quantised activations, run after run. In a run the vectors lie side by side: for every 4 elements the codes of all vectors,
/// then their sums, then their scales. A run that is longer than the vectors that are left has zeros.
#[derive(Default)]
pub struct Panel {
    /// Elements of a vector.
    n: usize,
    /// Elements that share each of the parts of a run, in their order there.
    steps: [usize; 4],
    codes: Vec<[u8; 4]>,
    words: Vec<[u8; 4]>,
    starts: Vec<[[u8; 4]; 2]>,
    scales: Vec<f32>,
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
    /// `[n / block][T]`
    pub scales: &'a [f32],
}

impl Panel {
    /// Arranges `x` for runs of `most` vectors.
    pub fn fill(&mut self, x: &Q8<'_>, most: usize, needs: &Needs) {
        let runs = Runs::new(x.vectors(), most);
        let room = runs.clone().map(|(_, length)| length).sum::<usize>();
        let pairs = needs.paired.map_or(usize::MAX, |paired| 2 * paired.sub);
        (self.n, self.steps) = (x.n, [4, needs.sums, pairs, x.block.elements()]);
        let [codes, words, starts, scales] = self.steps.map(|step| room * (x.n / step));
        self.codes.resize(codes, [0; 4]);
        self.words.resize(words, [0; 4]);
        self.starts.resize(starts, [[0; 4]; 2]);
        self.scales.resize(scales, 0.0);
        for (first, length) in runs {
            match length {
                6 => self.fill_run::<6>(x, first, needs),
                3 => self.fill_run::<3>(x, first, needs),
                2 => self.fill_run::<2>(x, first, needs),
                _ => unreachable!("runs of {length}"),
            }
        }
    }

    fn fill_run<const T: usize>(&mut self, x: &Q8<'_>, first: usize, needs: &Needs) {
        let [codes, words, starts, scales] = self.parts(first, T);
        let (codes, words) = (&mut self.codes[codes], &mut self.words[words]);
        let rows: [Option<Q8Row<'_>>; T] =
            std::array::from_fn(|t| (first + t < x.vectors()).then(|| x.vector(first + t)));
        let fours = rows.map(|row| row.map(|row| row.codes.as_chunks::<4>().0));
        let sums = rows.map(|row| row.map(|row| row.sums));
        let four = |fours: &[[i8; 4]], i: usize| fours[i].map(|code| code as u8);
        let total = |sums: &[i16]| sums.iter().map(|&sum| i32::from(sum)).sum::<i32>();
        side_by_side::<T, _, _>(&mut self.scales[scales], rows, |row, i| row.scales[i]);
        match needs.paired {
            None => side_by_side::<T, _, _>(codes, fours, four),
            Some(Paired { sub, start }) => {
                let (other, per) = (sub / 4, sub / SUM);
                side_by_side::<T, _, _>(codes.as_chunks_mut::<2>().0, fours, |fours, i| {
                    let at = i / other * 2 * other + i % other;
                    [four(fours, at), four(fours, at + other)]
                });
                side_by_side::<T, _, _>(&mut self.starts[starts], sums, |sums, i| {
                    [2 * i, 2 * i + 1].map(|i| (start * total(&sums[i * per..][..per])).to_ne_bytes())
                });
            }
        }
        let per = needs.sums / SUM;
        match needs.word {
            Word::Times(factor) => side_by_side::<T, _, _>(words, sums, |sums, i| {
                (factor * total(&sums[i * per..][..per])).to_ne_bytes()
            }),
            Word::Float => side_by_side::<T, _, _>(words, sums, |sums, i| {
                (total(&sums[i * per..][..per]) as f32).to_ne_bytes()
            }),
            Word::Halves => side_by_side::<T, _, _>(words, sums, |sums, i| {
                let (first, second) = sums[i * per..][..per].split_at(per / 2);
                let [[a, b], [c, d]] = [first, second].map(|sums| (total(sums) as i16).to_ne_bytes());
                [a, b, c, d]
            }),
        }
    }

    /// The run of `length` from vector `first` on.
    #[inline(always)]
    pub fn run(&self, first: usize, length: usize) -> Run<'_> {
        let [codes, words, starts, scales] = self.parts(first, length);
        Run {
            codes: &self.codes[codes],
            words: &self.words[words],
            starts: &self.starts[starts],
            scales: &self.scales[scales],
        }
    }

    /// Where the parts of the run of `length` from vector `first` on lie.
    #[inline(always)]
    fn parts(&self, first: usize, length: usize) -> [Range<usize>; 4] {
        self.steps.map(|step| first * (self.n / step)..(first + length) * (self.n / step))
    }
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
        let rows = rows.map(|row| row.unwrap_or(some));
        for (i, to) in to.iter_mut().enumerate() {
            *to = rows.map(|row| element(row, i));
        }
        return;
    }
    for (i, to) in to.iter_mut().enumerate() {
        *to = rows.map(|row| row.map_or(E::default(), |row| element(row, i)));
    }
}
