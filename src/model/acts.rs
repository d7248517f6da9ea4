//! Inputs of matrix products: the numbers and the int8 forms that their readers need.

use crate::kernel::format::ActBlock;
use crate::kernel::isa::Isa;
use crate::kernel::op::finite::all_finite;
use crate::kernel::op::matmul::Input;
use crate::kernel::op::quantize::{Q8, SUM, quantize, remainder};
use crate::kernel::par::{Member, Shared};
use crate::simd;

/// The blocks in which an input is needed.
pub type Blocks = [Option<ActBlock>; 2];

/// Memory for the inputs of some tokens, `[tokens][n]` each.
pub struct Acts {
    n: usize,
    f32: Vec<f32>,
    forms: Vec<Form>,
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
    pub fn bytes(n: usize, tokens: usize, forms: Blocks, refined: Blocks) -> usize {
        let form = |block| Form::bytes(n, block);
        let forms = forms.into_iter().chain(refined).flatten().map(form).sum::<usize>();
        tokens * (n * size_of::<f32>() + forms)
    }

    /// Room for `tokens` inputs of `n` numbers and their forms. Those that are also in `refined` have a second term, for what
    /// the codes of the first lose.
    pub fn new(n: usize, tokens: usize, forms: Blocks, refined: Blocks) -> Self {
        let terms = |block| if refined.contains(&Some(block)) { 2 } else { 1 };
        let forms = forms.into_iter().flatten().map(|b| Form::new(n, tokens, b, terms(b))).collect();
        Self { n, f32: vec![0.0; tokens * n], forms }
    }

    /// Lends the first `tokens` to a team run.
    pub fn share(&mut self, tokens: usize) -> SharedActs<'_> {
        let n = self.n;
        let mut forms = self.forms.iter_mut().map(|f| f.share(n, tokens));
        SharedActs { f32: Shared::new(&mut self.f32[..tokens * n], n), forms: [forms.next(), forms.next()] }
    }
}

/// [`Acts`] lent to a team run.
pub struct SharedActs<'a> {
    /// The numbers, `[tokens][n]`
    pub f32: Shared<'a, f32>,
    forms: [Option<SharedForm<'a>>; 2],
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
    /// Brings this member's columns of all tokens into the forms; with `refine` also what those lose, where a form has room
    /// for it. `bad` is called with a token that has a number that is not finite. The numbers must be complete.
    pub fn quantize(&self, m: &Member<'_>, isa: Isa, refine: bool, mut bad: impl FnMut(usize)) {
        let (x, n) = (self.f32.read(m), self.f32.width());
        if self.forms.iter().all(Option::is_none) {
            for (t, x) in x.chunks_exact(n).enumerate().filter(|(t, _)| t % m.size() == m.index()) {
                if !simd!(isa, s => all_finite(s, x)) {
                    bad(t);
                }
            }
        }
        for form in self.forms.iter().flatten() {
            let (block, unit, terms) = (form.block, form.block.elements(), form.terms);
            // This member's blocks of every vector, their scales and sums.
            let mut codes = form.codes.cols(m, unit);
            let (mut scales, mut sums) = (form.scales.cols(m, 1), form.sums.cols(m, unit / SUM));
            let range = codes.range();
            for (t, x) in x.chunks_exact(n).enumerate() {
                let (x, v) = (&x[range.clone()], t * terms);
                if !simd!(isa, s => quantize(s, block, x, codes.row(v), scales.row(v), sums.row(v))) {
                    bad(t);
                }
                if !refine || terms == 1 {
                    continue;
                }
                for (b, x) in x.chunks_exact(unit).enumerate() {
                    let mut lost = [0.0; ActBlock::B256.elements()];
                    let lost = &mut lost[..unit];
                    let (at, sums_at) = (b * unit, b * unit / SUM);
                    simd!(isa, s => {
                        remainder(s, block, x, &codes.row(v)[at..], &scales.row(v)[b..], lost);
                        let (codes, sums) = (&mut codes.row(v + 1)[at..], &mut sums.row(v + 1)[sums_at..]);
                        quantize(s, block, lost, codes, &mut scales.row(v + 1)[b..], sums)
                    });
                }
            }
        }
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
