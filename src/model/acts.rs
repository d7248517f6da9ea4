//! Inputs of matrix products: the numbers and the int8 forms that their readers need.

use crate::kernel::format::ActBlock;
use crate::kernel::isa::Isa;
use crate::kernel::op::finite::all_finite;
use crate::kernel::op::matmul::Input;
use crate::kernel::op::quantize::{Q8, SUM, quantize};
use crate::kernel::par::{Member, Shared};
use crate::simd;

/// Memory for the inputs of some tokens, `[tokens][n]` each.
pub struct Acts {
    n: usize,
    f32: Vec<f32>,
    forms: Vec<Form>,
}

struct Form {
    block: ActBlock,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
}

impl Acts {
    /// Bytes that [`Acts::new`] takes.
    pub fn bytes(n: usize, tokens: usize, forms: [Option<ActBlock>; 2]) -> usize {
        let form = |b: ActBlock| n + n / b.elements() * size_of::<f32>() + n / SUM * size_of::<i16>();
        tokens * (n * size_of::<f32>() + forms.into_iter().flatten().map(form).sum::<usize>())
    }

    /// Room for `tokens` inputs of `n` numbers and these forms of them.
    pub fn new(n: usize, tokens: usize, forms: [Option<ActBlock>; 2]) -> Self {
        let form = |block: ActBlock| Form {
            block,
            codes: vec![0; tokens * n],
            scales: vec![0.0; tokens * n / block.elements()],
            sums: vec![0; tokens * n / SUM],
        };
        Self { n, f32: vec![0.0; tokens * n], forms: forms.into_iter().flatten().map(form).collect() }
    }

    /// Lends the first `tokens` to a team run.
    pub fn share(&mut self, tokens: usize) -> SharedActs<'_> {
        let n = self.n;
        let mut forms = self.forms.iter_mut().map(|f| SharedForm {
            block: f.block,
            codes: Shared::new(&mut f.codes[..tokens * n], n),
            scales: Shared::new(&mut f.scales[..tokens * n / f.block.elements()], n / f.block.elements()),
            sums: Shared::new(&mut f.sums[..tokens * n / SUM], n / SUM),
        });
        let forms = [forms.next(), forms.next()];
        SharedActs { f32: Shared::new(&mut self.f32[..tokens * n], n), forms }
    }
}

/// [`Acts`] lent to a team run.
pub struct SharedActs<'a> {
    /// The numbers, `[tokens][n]`
    pub f32: Shared<'a, f32>,
    forms: [Option<SharedForm<'a>>; 2],
}

struct SharedForm<'a> {
    block: ActBlock,
    codes: Shared<'a, i8>,
    scales: Shared<'a, f32>,
    sums: Shared<'a, i16>,
}

impl SharedActs<'_> {
    /// Brings this member's columns of all tokens into the forms. `bad` is called with a token that has a number that is
    /// not finite. The numbers must be complete.
    pub fn quantize(&self, m: &Member<'_>, isa: Isa, mut bad: impl FnMut(usize)) {
        let (x, n) = (self.f32.read(m), self.f32.width());
        if self.forms.iter().all(Option::is_none) {
            for (t, x) in x.chunks_exact(n).enumerate().filter(|(t, _)| t % m.size() == m.index()) {
                if !simd!(isa, s => all_finite(s, x)) {
                    bad(t);
                }
            }
        }
        for form in self.forms.iter().flatten() {
            let unit = form.block.elements();
            let (mut codes, mut scales, mut sums) =
                (form.codes.cols(m, unit), form.scales.cols(m, 1), form.sums.cols(m, unit / SUM));
            let range = codes.range();
            for (t, x) in x.chunks_exact(n).enumerate() {
                let x = &x[range.clone()];
                let ok =
                    simd!(isa, s => quantize(s, form.block, x, codes.row(t), scales.row(t), sums.row(t)));
                if !ok {
                    bad(t);
                }
            }
        }
    }

    /// The input for products. The forms must be complete.
    pub fn input<'m>(&'m self, m: &'m Member<'_>) -> Input<'m> {
        let form = |block: ActBlock| {
            self.forms.iter().flatten().find(|f| f.block == block).map(|f| Q8 {
                block,
                n: self.f32.width(),
                codes: f.codes.read(m),
                scales: f.scales.read(m),
                sums: f.sums.read(m),
            })
        };
        Input {
            f32: self.f32.read(m),
            n: self.f32.width(),
            b32: form(ActBlock::B32),
            b256: form(ActBlock::B256),
        }
    }
}
