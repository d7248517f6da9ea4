//! Logits to the next token id.
//!
//! The chain, in this order; a step at its neutral value does nothing:
//!
//! 1. **bias**: `logit[id] += bias` for each `(id, bias)` in the order given; minus infinity bans a token;
//! 2. **penalties** over the last [`Params::penalty_window`] accepted tokens (the prompt counts), each distinct token
//!    once, `count` being how often it occurs there: a positive logit is divided by the repetition penalty, another
//!    multiplied by it; then `logit -= count * frequency + presence`;
//! 3. **temperature 0** takes the largest logit, the lowest id among equals, and ends here;
//! 4. **truncation**, on the probabilities the model gave (temperature 1), candidates ordered by falling logit, then
//!    rising id: **top-k** keeps the first k; **top-p** the shortest run of them whose probability within the kept ones
//!    reaches p, never less than one; **min-p** those with at least p times the probability of the first;
//! 5. **draw** with weights `exp((logit - max) / temperature)`. Without truncation this is Gumbel-max: the largest
//!    `(logit - max) / temperature + g`, with one independent Gumbel number `g` a token in order of ids, so no sum over
//!    the vocabulary is needed and no sort. After truncation one uniform number is looked up in the running sum.
//!
//! Steps 1 and 2 are f32, the rest f64 with `exp` and `log` of the pure-Rust `libm` crate and sums in the candidates'
//! order: the same logits, parameters and seed give the same token on every machine. One call draws from the random
//! source once a token of the vocabulary (Gumbel-max), once (truncated) or not at all (temperature 0).
//!
//! Nothing is allocated for a token once the buffers have grown to the vocabulary.

mod candidates;
mod gumbel;
mod penalties;
mod rng;

use candidates::Candidates;
use penalties::Window;
pub use rng::Rng;

/// How to choose a token. [`Params::default`] is greedy: temperature 0, nothing else on.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// 0 takes the likeliest token; 1 samples what the model says; larger flattens.
    pub temperature: f32,
    /// Keep the k likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the likeliest tokens until their probability reaches this, in [0, 1]; 1 keeps all, 0 the likeliest.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the likeliest, in [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies other logits of tokens in the window; above 0; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted from a logit for each occurrence of the token in the window; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted from a logit once when the token is in the window; 0 is off.
    pub presence_penalty: f32,
    /// How many of the last accepted tokens the penalties look at; 0 turns them off, `usize::MAX` is all.
    pub penalty_window: usize,
    /// Added to logits by id; minus infinity bans.
    pub logit_bias: Vec<(u32, f32)>,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 64,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Params {
    /// Whether any token is cut off before the draw.
    fn truncates(&self, n_vocab: usize) -> bool {
        (1..n_vocab).contains(&self.top_k) || self.top_p < 1.0 || self.min_p > 0.0
    }

    fn penalises(&self) -> bool {
        self.penalty_window > 0
            && (self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0)
    }
}

/// Why no token can be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A parameter that makes no sense.
    #[error("{name} is {value}, but must be {allowed}")]
    Parameter {
        /// Which.
        name: &'static str,
        /// What it was.
        value: f32,
        /// What it may be.
        allowed: &'static str,
    },
    /// A bias for a token which the model does not have.
    #[error("logit bias for token {id}, but the vocabulary has {n_vocab} tokens (0 to {})", n_vocab.saturating_sub(1))]
    BiasOutside {
        /// The token.
        id: u32,
        /// Tokens of the vocabulary.
        n_vocab: usize,
    },
    /// A logit that is not a number.
    #[error("the logit of token {id} is NaN: the model file is damaged or its arithmetic overflowed")]
    NotANumber {
        /// The token.
        id: u32,
    },
    /// A logit of plus infinity.
    #[error("the logit of token {id} is infinite: the model file is damaged or its arithmetic overflowed")]
    Infinite {
        /// The token.
        id: u32,
    },
    /// Every logit is minus infinity.
    #[error("no token can follow: all {n_vocab} are ruled out")]
    NothingLeft {
        /// Tokens of the vocabulary.
        n_vocab: usize,
    },
}

/// Chooses tokens by [`Params`], remembering the accepted ones for the penalties and the state of the random source.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: Params,
    rng: Rng,
    window: Window,
    candidates: Candidates,
}

impl Sampler {
    /// Refuses parameters outside of the ranges written at [`Params`].
    pub fn new(params: Params) -> Result<Self, Error> {
        let check = |name, value: f32, allowed, good: bool| {
            if good { Ok(()) } else { Err(Error::Parameter { name, value, allowed }) }
        };
        let Params { temperature: t, top_p, min_p, repeat_penalty: r, .. } = params;
        check("temperature", t, "0 or more and finite", t >= 0.0 && t.is_finite())?;
        check("top-p", top_p, "between 0 and 1", (0.0..=1.0).contains(&top_p))?;
        check("min-p", min_p, "between 0 and 1", (0.0..=1.0).contains(&min_p))?;
        check("repeat penalty", r, "above 0 and finite", r > 0.0 && r.is_finite())?;
        for (name, value) in
            [("frequency penalty", params.frequency_penalty), ("presence penalty", params.presence_penalty)]
        {
            check(name, value, "finite", value.is_finite())?;
        }
        for &(_, bias) in &params.logit_bias {
            check("logit bias", bias, "a number or -inf", bias < f32::INFINITY)?;
        }
        let window = Window::new(if params.penalises() { params.penalty_window } else { 0 });
        Ok(Sampler { rng: Rng::new(params.seed), window, candidates: Candidates::default(), params })
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Starts the penalties' window over with the tokens of a prompt. The random sequence goes on.
    pub fn restart(&mut self, prompt: &[u32]) {
        self.window.clear();
        prompt.iter().for_each(|&id| self.window.push(id));
    }

    /// Tells the sampler of a token that joined the text after [`Sampler::restart`].
    pub fn accept(&mut self, id: u32) {
        self.window.push(id);
    }

    /// Whether [`Sampler::sample`] chooses the largest of the logits as they are.
    pub fn takes_the_largest(&self) -> bool {
        self.params.temperature == 0.0 && self.params.logit_bias.is_empty() && !self.params.penalises()
    }

    /// Chooses the next token. `logits`: `[n_vocab]`, changed in place by bias and penalties.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<u32, Error> {
        let n_vocab = logits.len();
        for &(id, bias) in &self.params.logit_bias {
            *logits.get_mut(id as usize).ok_or(Error::BiasOutside { id, n_vocab })? += bias;
        }
        self.window.penalise(&self.params, logits);
        let max = largest(logits)?;
        let temperature = f64::from(self.params.temperature);
        if temperature == 0.0 {
            return first_of(logits, max);
        }
        if self.params.truncates(n_vocab) {
            self.candidates.fill(logits);
            self.candidates.truncate(&self.params);
            return Ok(self.candidates.draw(temperature, self.rng.uniform()));
        }
        Ok(gumbel::draw(logits, max, temperature, &mut self.rng))
    }
}

/// The largest logit, after making sure that every one is a number or minus infinity, and one a number.
fn largest(logits: &[f32]) -> Result<f32, Error> {
    // Eight running maxima, so that the compiler can keep them in one register.
    let mut lanes = [f32::NEG_INFINITY; 8];
    let mut good = true;
    let (chunks, rest) = logits.as_chunks::<8>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            good &= logit < f32::INFINITY;
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    for (lane, &logit) in lanes.iter_mut().zip(rest) {
        good &= logit < f32::INFINITY;
        *lane = if logit > *lane { logit } else { *lane };
    }
    if !good
        && let Some((id, logit)) =
            (0..).zip(logits).find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY)
    {
        return Err(if logit.is_nan() { Error::NotANumber { id } } else { Error::Infinite { id } });
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY { Err(Error::NothingLeft { n_vocab: logits.len() }) } else { Ok(max) }
}

/// The lowest id whose logit equals `max`.
fn first_of(logits: &[f32], max: f32) -> Result<u32, Error> {
    (0..)
        .zip(logits)
        .find_map(|(id, &logit)| (logit == max).then_some(id))
        .ok_or(Error::NothingLeft { n_vocab: logits.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(params: Params) -> Sampler {
        Sampler::new(params).expect("good parameters")
    }

    fn one(params: Params, logits: &[f32]) -> Result<u32, Error> {
        sampler(params).sample(&mut logits.to_vec())
    }

    #[test]
    fn temperature_zero_takes_the_lowest_id_among_equals() {
        for n in 1..40 {
            for best in 0..n {
                let mut logits = vec![-1.0; n];
                logits[best..].fill(2.5);
                assert_eq!(one(Params::default(), &logits), Ok(best as u32), "{n} logits");
            }
        }
        assert_eq!(one(Params::default(), &[-0.0, 0.0]), Ok(0));
        assert_eq!(one(Params::default(), &[f32::NEG_INFINITY, f32::MIN]), Ok(1));
    }

    #[test]
    fn what_is_not_a_number_is_named() {
        for n in [1, 7, 8, 9, 33] {
            for bad in 0..n {
                let mut logits = vec![0.5; n];
                logits[bad] = f32::NAN;
                assert_eq!(one(Params::default(), &logits), Err(Error::NotANumber { id: bad as u32 }));
                logits[bad] = f32::INFINITY;
                let hot = Params { temperature: 1.0, top_k: 3, ..Params::default() };
                assert_eq!(one(hot, &logits), Err(Error::Infinite { id: bad as u32 }));
            }
        }
        let none = [f32::NEG_INFINITY; 5];
        assert_eq!(one(Params::default(), &none), Err(Error::NothingLeft { n_vocab: 5 }));
        assert_eq!(one(Params::default(), &[]), Err(Error::NothingLeft { n_vocab: 0 }));
    }

    #[test]
    fn senseless_parameters_are_refused_by_name() {
        let d = Params::default;
        let cases = [
            ("temperature", Params { temperature: -0.1, ..d() }),
            ("temperature", Params { temperature: f32::NAN, ..d() }),
            ("temperature", Params { temperature: f32::INFINITY, ..d() }),
            ("top-p", Params { top_p: 1.01, ..d() }),
            ("top-p", Params { top_p: f32::NAN, ..d() }),
            ("min-p", Params { min_p: -0.01, ..d() }),
            ("repeat penalty", Params { repeat_penalty: 0.0, ..d() }),
            ("repeat penalty", Params { repeat_penalty: f32::INFINITY, ..d() }),
            ("frequency penalty", Params { frequency_penalty: f32::NAN, ..d() }),
            ("presence penalty", Params { presence_penalty: f32::INFINITY, ..d() }),
            ("logit bias", Params { logit_bias: vec![(0, f32::NAN)], ..d() }),
            ("logit bias", Params { logit_bias: vec![(0, f32::INFINITY)], ..d() }),
        ];
        for (wanted, params) in cases {
            match Sampler::new(params) {
                Err(Error::Parameter { name, .. }) => assert_eq!(name, wanted),
                other => panic!("{wanted}: {other:?}"),
            }
        }
        assert_eq!(
            Sampler::new(Params { temperature: -1.0, ..d() }).err().map(|e| e.to_string()).as_deref(),
            Some("temperature is -1, but must be 0 or more and finite")
        );
    }

    #[test]
    fn a_bias_moves_and_bans_tokens() {
        let logits = [1.0, 3.0, 2.0];
        let bias = |list: &[(u32, f32)]| Params { logit_bias: list.to_vec(), ..Params::default() };
        assert_eq!(one(bias(&[(1, f32::NEG_INFINITY)]), &logits), Ok(2));
        assert_eq!(one(bias(&[(0, 1.5), (0, 1.0)]), &logits), Ok(0));
        assert_eq!(one(bias(&[(3, 1.0)]), &logits), Err(Error::BiasOutside { id: 3, n_vocab: 3 }));
        let banned = Params { temperature: 2.0, seed: 9, ..bias(&[(1, f32::NEG_INFINITY)]) };
        let mut sampler = sampler(banned);
        for _ in 0..1000 {
            assert_ne!(sampler.sample(&mut logits.to_vec()), Ok(1));
        }
    }

    #[test]
    fn truncations_that_leave_one_token_are_greedy() {
        let logits = [0.1, 0.7, 0.69, 0.7, -3.0];
        let hot = Params { temperature: 5.0, ..Params::default() };
        for seed in 0..200 {
            for params in
                [Params { top_k: 1, seed, ..hot.clone() }, Params { top_p: 0.0, seed, ..hot.clone() }]
            {
                assert_eq!(one(params.clone(), &logits), Ok(1), "{params:?}");
            }
            // min-p 1 keeps everything as likely as the best.
            let tied = one(Params { min_p: 1.0, seed, ..hot.clone() }, &logits);
            assert!(matches!(tied, Ok(1 | 3)), "{tied:?}");
        }
    }

    #[test]
    fn neutral_truncation_is_the_same_draw_as_none() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        for seed in 0..100 {
            let hot = Params { temperature: 0.9, seed, ..Params::default() };
            let plain = one(hot.clone(), &logits);
            for same in [50, 51, usize::MAX] {
                assert_eq!(one(Params { top_k: same, ..hot.clone() }, &logits), plain);
            }
        }
    }

    #[test]
    fn a_seed_is_a_text() {
        let logits: Vec<f32> = (0..300).map(|i| (i * 37 % 101) as f32 / 16.0 - 3.0).collect();
        let hot = |seed, top_k| Params { temperature: 1.0, seed, top_k, ..Params::default() };
        for top_k in [0, 40] {
            let text = |seed| {
                let mut sampler = sampler(hot(seed, top_k));
                (0..20).map(|_| sampler.sample(&mut logits.clone())).collect::<Result<Vec<_>, _>>()
            };
            assert_eq!(text(7), text(7));
            assert_ne!(text(7), text(8));
        }
        // From a plain script written after the module's description: a change of these is a change of users' texts.
        let text = |top_k| {
            let mut sampler = sampler(hot(1234, top_k));
            (0..8).map(|_| sampler.sample(&mut logits.clone())).collect::<Result<Vec<_>, _>>()
        };
        assert_eq!(text(0), Ok(vec![196, 57, 188, 90, 248, 270, 62, 281]));
        assert_eq!(text(40), Ok(vec![117, 131, 19, 87, 221, 117, 60, 232]));
    }
}
