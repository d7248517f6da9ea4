//! Inputs of matrix products: the numbers and the int8 forms that their readers need.

use crate::kernel::format::ActBlock;
use crate::kernel::isa::Isa;
use crate::kernel::op::finite::all_finite;
use crate::kernel::op::matmul::Input;
use crate::kernel::op::quantize::{Q8, SUM, quantize, remainder};
use crate::kernel::par::{Cols, Member, Shared};
use crate::simd;

/// The blocks in which an input is needed.
pub type Blocks = [Option<ActBlock>; 2];

/// Memory for the inputs of some tokens, `[tokens][n]` each.
pub struct Acts {
    n: usize,
    f32: Vec<f32>,
    forms: Vec<Form>,
    rests: Vec<Form>,
}

struct Form {
    block: ActBlock,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
}

impl Form {
    fn bytes(n: usize, block: ActBlock) -> usize {
        n + n / block.elements() * size_of::<f32>() + n / SUM * size_of::<i16>()
    }

    fn new(len: usize, block: ActBlock) -> Self {
        let zeros = (vec![0; len], vec![0.0; len / block.elements()], vec![0; len / SUM]);
        Self { block, codes: zeros.0, scales: zeros.1, sums: zeros.2 }
    }

    fn share(&mut self, n: usize, tokens: usize) -> SharedForm<'_> {
        let (blocks, sums) = (n / self.block.elements(), n / SUM);
        SharedForm {
            block: self.block,
            codes: Shared::new(&mut self.codes[..tokens * n], n),
            scales: Shared::new(&mut self.scales[..tokens * blocks], blocks),
            sums: Shared::new(&mut self.sums[..tokens * sums], sums),
        }
    }
}

impl Acts {
    /// Bytes that [`Acts::new`] takes.
    pub fn bytes(n: usize, tokens: usize, forms: Blocks, rests: Blocks) -> usize {
        let form = |block| Form::bytes(n, block);
        let forms = forms.into_iter().chain(rests).flatten().map(form).sum::<usize>();
        tokens * (n * size_of::<f32>() + forms)
    }

    /// Room for `tokens` inputs of `n` numbers, their forms, and the forms of what these lose.
    pub fn new(n: usize, tokens: usize, forms: Blocks, rests: Blocks) -> Self {
        let all = |blocks: Blocks| blocks.into_iter().flatten().map(|b| Form::new(tokens * n, b)).collect();
        Self { n, f32: vec![0.0; tokens * n], forms: all(forms), rests: all(rests) }
    }

    /// Lends the first `tokens` to a team run.
    pub fn share(&mut self, tokens: usize) -> SharedActs<'_> {
        let n = self.n;
        let mut forms = self.forms.iter_mut().map(|f| f.share(n, tokens));
        let mut rests = self.rests.iter_mut().map(|f| f.share(n, tokens));
        SharedActs {
            f32: Shared::new(&mut self.f32[..tokens * n], n),
            forms: [forms.next(), forms.next()],
            rests: [rests.next(), rests.next()],
        }
    }
}

/// [`Acts`] lent to a team run.
pub struct SharedActs<'a> {
    /// The numbers, `[tokens][n]`
    pub f32: Shared<'a, f32>,
    forms: [Option<SharedForm<'a>>; 2],
    rests: [Option<SharedForm<'a>>; 2],
}

struct SharedForm<'a> {
    block: ActBlock,
    codes: Shared<'a, i8>,
    scales: Shared<'a, f32>,
    sums: Shared<'a, i16>,
}

impl<'a> SharedForm<'a> {
    fn of(forms: &[Option<Self>; 2], block: ActBlock) -> Option<&Self> {
        forms.iter().flatten().find(|f| f.block == block)
    }

    /// This member's blocks of every token, their scales and sums.
    fn claim<'m>(&'m self, m: &'m Member<'_>) -> (Cols<'m, i8>, Cols<'m, f32>, Cols<'m, i16>) {
        let unit = self.block.elements();
        (self.codes.cols(m, unit), self.scales.cols(m, 1), self.sums.cols(m, unit / SUM))
    }

    fn read<'m>(&'m self, m: &'m Member<'_>, n: usize) -> Q8<'m> {
        let Self { block, codes, scales, sums } = self;
        Q8 { block: *block, n, codes: codes.read(m), scales: scales.read(m), sums: sums.read(m) }
    }
}

impl SharedActs<'_> {
    /// Brings this member's columns of all tokens into the forms, and with `rest` also what those lose. `bad` is called
    /// with a token that has a number that is not finite. The numbers must be complete.
    pub fn quantize(&self, m: &Member<'_>, isa: Isa, rest: bool, mut bad: impl FnMut(usize)) {
        let (x, n) = (self.f32.read(m), self.f32.width());
        if self.forms.iter().all(Option::is_none) {
            for (t, x) in x.chunks_exact(n).enumerate().filter(|(t, _)| t % m.size() == m.index()) {
                if !simd!(isa, s => all_finite(s, x)) {
                    bad(t);
                }
            }
        }
        for form in self.forms.iter().flatten() {
            let (block, unit) = (form.block, form.block.elements());
            let (mut codes, mut scales, mut sums) = form.claim(m);
            let mut lost = SharedForm::of(&self.rests, block).filter(|_| rest).map(|f| f.claim(m));
            let range = codes.range();
            for (t, x) in x.chunks_exact(n).enumerate() {
                let x = &x[range.clone()];
                let (codes, scales) = (codes.row(t), scales.row(t));
                if !simd!(isa, s => quantize(s, block, x, codes, scales, sums.row(t))) {
                    bad(t);
                }
                let Some((lost_codes, lost_scales, lost_sums)) = &mut lost else { continue };
                let to = lost_codes.row(t).chunks_exact_mut(unit).zip(lost_scales.row(t).chunks_exact_mut(1));
                let to = to.zip(lost_sums.row(t).chunks_exact_mut(unit / SUM));
                let from = x.chunks_exact(unit).zip(codes.chunks_exact(unit)).zip(scales.chunks_exact(1));
                for (((x, codes), scale), ((to_codes, to_scale), to_sums)) in from.zip(to) {
                    let mut lost = [0.0; ActBlock::B256.elements()];
                    let lost = &mut lost[..unit];
                    simd!(isa, s => {
                        remainder(s, block, x, codes, scale, lost);
                        quantize(s, block, lost, to_codes, to_scale, to_sums)
                    });
                }
            }
        }
    }

    /// The input for products. The forms must be complete.
    pub fn input<'m>(&'m self, m: &'m Member<'_>) -> Input<'m> {
        self.with(m, &self.forms)
    }

    /// Whether what this form loses is kept.
    pub fn keeps_rest(&self, block: ActBlock) -> bool {
        SharedForm::of(&self.rests, block).is_some()
    }

    /// The input for products with what the forms lost.
    pub fn rest<'m>(&'m self, m: &'m Member<'_>) -> Input<'m> {
        self.with(m, &self.rests)
    }

    fn with<'m>(&'m self, m: &'m Member<'_>, forms: &'m [Option<SharedForm<'_>>; 2]) -> Input<'m> {
        let n = self.f32.width();
        let form = |block| SharedForm::of(forms, block).map(|f| f.read(m, n));
        Input { f32: self.f32.read(m), n, b32: form(ActBlock::B32), b256: form(ActBlock::B256) }
    }
}
