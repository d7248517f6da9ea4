//! Inputs of matrix products: the numbers and the int8 forms that their readers need.

use crate::kernel::format::drive::panel::{Arrangement, Panel, VECTOR_UNIT};
use crate::kernel::format::{ActBlock, Matrix};
use crate::kernel::isa::Isa;
use crate::kernel::op::finite::all_finite;
use crate::kernel::op::matmul::{Input, ROW_UNIT, arrangement, panel_bytes, panel_vectors};
use crate::kernel::op::quantize::{Q8, SUM, quantize, remainder};
use crate::kernel::par::{Cols, Member, Shared};
use crate::simd;
use std::ops::Range;

/// The blocks in which an input is needed.
pub type Blocks = [Option<ActBlock>; 2];

/// The most matrices that are multiplied by an input at once.
pub const READERS: usize = 3;

/// Memory for the inputs of some tokens, `[tokens][n]` each.
pub struct Acts {
    n: usize,
    f32: Vec<f32>,
    forms: Vec<Form>,
    /// The vectors as the matrices want them that they are multiplied by, one for each.
    panels: Vec<Vec<[u8; 4]>>,
}

struct Form {
    block: ActBlock,
    /// Terms of each token.
    terms: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
}

impl Form {
    fn bytes(n: usize, block: ActBlock) -> usize {
        n + n / block.elements() * size_of::<f32>() + n / SUM * size_of::<i16>()
    }

    fn new(n: usize, tokens: usize, block: ActBlock, terms: usize) -> Self {
        let len = tokens * terms * n;
        let zeros = (vec![0; len], vec![0.0; len / block.elements()], vec![0; len / SUM]);
        Self { block, terms, codes: zeros.0, scales: zeros.1, sums: zeros.2 }
    }

    fn share(&mut self, n: usize, tokens: usize) -> SharedForm<'_> {
        let (blocks, sums, vectors) = (n / self.block.elements(), n / SUM, tokens * self.terms);
        SharedForm {
            block: self.block,
            terms: self.terms,
            codes: Shared::new(&mut self.codes[..vectors * n], n),
            scales: Shared::new(&mut self.scales[..vectors * blocks], blocks),
            sums: Shared::new(&mut self.sums[..vectors * sums], sums),
        }
    }
}

impl Acts {
    /// Bytes that [`Acts::new`] takes.
    pub fn bytes(n: usize, tokens: usize, forms: Blocks, refined: Blocks, matrices: usize) -> usize {
        let form = |block| Form::bytes(n, block);
        let panels = match forms {
            [None, None] => 0,
            _ => matrices * panel_bytes(n, tokens * most_terms(refined)),
        };
        let forms = forms.into_iter().chain(refined).flatten().map(form).sum::<usize>();
        tokens * (n * size_of::<f32>() + forms) + panels
    }

    /// Room for `tokens` inputs of `n` numbers and their forms, which so many matrices are multiplied by at once. Those that are
    /// also in `refined` have a second term, for what the codes of the first lose.
    pub fn new(n: usize, tokens: usize, forms: Blocks, refined: Blocks, matrices: usize) -> Self {
        let terms = |block| if refined.contains(&Some(block)) { 2 } else { 1 };
        let forms: Vec<_> = forms.into_iter().flatten().map(|b| Form::new(n, tokens, b, terms(b))).collect();
        let words = panel_bytes(n, tokens * most_terms(refined)) / size_of::<[u8; 4]>();
        let panels = if forms.is_empty() { 0 } else { matrices };
        Self { n, f32: vec![0.0; tokens * n], forms, panels: vec![vec![[0; 4]; words]; panels] }
    }

    /// Lends the first `tokens` to a team run.
    pub fn share(&mut self, tokens: usize) -> SharedActs<'_> {
        let (n, words) = (self.n, Arrangement::most_words(self.n));
        let mut forms = self.forms.iter_mut().map(|f| f.share(n, tokens));
        let mut panels = self.panels.iter_mut().map(|panel| Shared::new(panel, words.max(1)));
        SharedActs {
            f32: Shared::new(&mut self.f32[..tokens * n], n),
            forms: std::array::from_fn(|_| forms.next()),
            panels: std::array::from_fn(|_| panels.next()),
        }
    }
}

fn most_terms(refined: Blocks) -> usize {
    if refined == [None, None] { 1 } else { 2 }
}

/// [`Acts`] lent to a team run.
pub struct SharedActs<'a> {
    /// The numbers, `[tokens][n]`
    pub f32: Shared<'a, f32>,
    forms: [Option<SharedForm<'a>>; 2],
    /// `[vectors][words]`
    panels: [Option<Shared<'a, [u8; 4]>>; READERS],
}

/// How a matrix wants its input, and where that is.
#[derive(Clone, Copy)]
pub struct Reader {
    arrangement: Arrangement,
    terms: usize,
    /// The same for all that want the same.
    panel: usize,
}

/// What was made of an input for each of the matrices that it is multiplied by; none if it takes the input as it is.
pub type Arranged = [Option<Reader>; READERS];

/// What a member makes of an input.
#[derive(Clone, Copy)]
pub enum Deal {
    /// All of some tokens.
    Tokens,
    /// Some columns of all tokens.
    Columns,
}

impl Deal {
    /// A member's part of a buffer with so many rows a token, where columns are dealt in units of `unit`.
    fn part<'m, T>(self, m: &'m Member<'_>, of: &'m Shared<'_, T>, rows: usize, unit: usize) -> Cols<'m, T> {
        match self {
            Self::Tokens => of.strip(m, rows),
            Self::Columns => of.cols(m, unit),
        }
    }
}

/// `[tokens][terms]` vectors.
struct SharedForm<'a> {
    block: ActBlock,
    terms: usize,
    codes: Shared<'a, i8>,
    scales: Shared<'a, f32>,
    sums: Shared<'a, i16>,
}

impl SharedActs<'_> {
    /// Makes this member's part of the input: `fill` writes the numbers of a token's columns (or leaves them as they are), which
    /// are then brought into the forms; with `refine` also what those lose, where a form has room for it. `bad` is called with
    /// a token that has a number that is not finite.
    pub fn make(
        &self,
        m: &Member<'_>,
        isa: Isa,
        (deal, refine): (Deal, bool),
        mut fill: impl FnMut(usize, Range<usize>, &mut [f32]),
        mut bad: impl FnMut(usize),
    ) {
        let forms = || self.forms.iter().flatten();
        let unit = forms().map(|form| form.block.elements()).max().unwrap_or(ROW_UNIT);
        let mut x = deal.part(m, &self.f32, 1, unit);
        let (first, columns) = (x.first_row(), x.range());
        for t in 0..x.height() {
            fill(first + t, columns.clone(), x.row(t));
            if forms().next().is_none() && !simd!(isa, s => all_finite(s, x.row(t))) {
                bad(first + t);
            }
        }
        for form in forms() {
            let (block, terms, n) = (form.block, form.terms, form.block.elements());
            let mut codes = deal.part(m, &form.codes, terms, unit);
            let (mut scales, mut sums) =
                (deal.part(m, &form.scales, terms, unit / n), deal.part(m, &form.sums, terms, unit / SUM));
            for t in 0..x.height() {
                let (x, v) = (x.row(t), t * terms);
                if !simd!(isa, s => quantize(s, block, x, codes.row(v), scales.row(v), sums.row(v))) {
                    bad(first + t);
                }
                if !refine || terms == 1 {
                    continue;
                }
                for (b, x) in x.chunks_exact(n).enumerate() {
                    let mut lost = [0.0; ActBlock::B256.elements()];
                    let lost = &mut lost[..n];
                    let (at, sums_at) = (b * n, b * n / SUM);
                    simd!(isa, s => {
                        remainder(s, block, x, &codes.row(v)[at..], &scales.row(v)[b..], lost);
                        let (codes, sums) = (&mut codes.row(v + 1)[at..], &mut sums.row(v + 1)[sums_at..]);
                        quantize(s, block, lost, codes, &mut scales.row(v + 1)[b..], sums)
                    });
                }
            }
        }
    }

    /// Arranges this member's vectors of the complete input for products with some matrices, of all terms for those that are
    /// refined. What is arranged is the same for all members; it can be used after the next barrier.
    pub fn arrange<'w>(
        &self,
        m: &Member<'_>,
        isa: Isa,
        exact: bool,
        readers: impl Iterator<Item = (Matrix<'w>, bool)>,
    ) -> Arranged {
        let mut arranged: Arranged = [None; READERS];
        for (i, (w, refined)) in readers.enumerate() {
            let input = self.input(m, refined);
            let Some(x) = w.format().act().filter(|_| !exact).map(|block| input.form(block)) else {
                continue;
            };
            let Some(arrangement) = arrangement(isa, exact, w, x.vectors()) else { continue };
            let same = |of: &&Reader| (of.arrangement, of.terms) == (arrangement, x.terms);
            if let Some(&reader) = arranged.iter().flatten().find(same) {
                arranged[i] = Some(reader);
                continue;
            }
            let Some(panel) = &self.panels[i] else { continue };
            let mut rows = panel.first_rows(m, panel_vectors(x.vectors()), VECTOR_UNIT);
            let vectors = rows.range().start..rows.range().end.min(x.vectors());
            arrangement.fill(x, vectors, rows.data(), panel.width());
            arranged[i] = Some(Reader { arrangement, terms: x.terms, panel: i });
        }
        arranged
    }

    /// What was [arranged](Self::arrange) for a matrix.
    pub fn panel<'m>(&'m self, m: &'m Member<'_>, of: &Reader) -> Option<Panel<'m>> {
        let panel = self.panels[of.panel].as_ref()?;
        Some(Panel::new(&of.arrangement, self.f32.width(), panel.read(m), panel.width()))
    }

    /// The input for products, with `refined` all terms of it. The forms must be complete.
    pub fn input<'m>(&'m self, m: &'m Member<'_>, refined: bool) -> Input<'m> {
        let n = self.f32.width();
        let form = |block| {
            let form = self.forms.iter().flatten().find(|f| f.block == block)?;
            Some(Q8 {
                block,
                n,
                stored: form.terms,
                terms: if refined { form.terms } else { 1 },
                codes: form.codes.read(m),
                scales: form.scales.read(m),
                sums: form.sums.read(m),
            })
        };
        Input { f32: self.f32.read(m), n, b32: form(ActBlock::B32), b256: form(ActBlock::B256) }
    }
}
