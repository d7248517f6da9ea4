//! The loop: prompt -> forward -> head -> sample -> callback, until something ends the text.
//!
//! [`Session`] owns an [`Engine`] and knows which tokens it has evaluated, so that a prompt which begins like the last
//! one costs only its new part. The loop itself is pure control flow: its tests run it over a scripted engine.

mod answer;
pub mod digest;
mod engine;
pub mod memory;
pub mod stop;
mod text;

use std::borrow::Cow;
use std::io;
use std::time::{Duration, Instant};

use crate::sample::{self, Sampler};
pub use answer::{Answer, StopReason, Timing};
use digest::Digest;
use text::Text;

/// Tokens between two looks at the process's memory.
const MEMORY_INTERVAL: usize = 16;

/// What the loop asks of a model with its state.
pub trait Engine {
    /// Why an evaluation failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// How many tokens the state can hold.
    fn context(&self) -> usize;

    /// How many tokens have been evaluated.
    fn position(&self) -> usize;

    /// Forgets the tokens from `position` on; returns how many are left, fewer where the state cannot go back that far.
    fn truncate(&mut self, position: usize) -> usize;

    /// Evaluates tokens at the positions that follow; at least one, at most what the context has room for.
    fn eval(&mut self, ids: &[u32]) -> Result<(), Self::Error>;

    /// The logits after the last evaluated token.
    fn logits(&mut self) -> Result<Logits<'_>, Self::Error>;
}

/// What follows a token.
pub struct Logits<'a> {
    /// `[n_vocab]`. The caller may change them.
    pub values: &'a mut [f32],
    /// The token of the largest, the lowest of equal ones, where the engine found it on its way. All are finite then.
    pub largest: Option<u32>,
}

/// What the loop asks of a tokenizer.
pub trait Vocabulary {
    /// The bytes a token shows; may be part of a character.
    fn piece(&self, id: u32) -> Cow<'_, [u8]>;

    /// Whether the token ends a text (eos, eot, eom).
    fn is_end(&self, id: u32) -> bool;
}

/// Who follows a generation.
pub trait Listener {
    /// `done` of the `total` prompt tokens are evaluated.
    fn prompt(&mut self, done: usize, total: usize) {
        let _ = (done, total);
    }

    /// The next piece of text, whole characters.
    fn text(&mut self, text: &str) -> io::Result<()>;

    /// Whether to stop as soon as possible; asked once a token or part of the prompt.
    fn interrupted(&self) -> bool {
        false
    }
}

/// What to generate.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// All tokens of the text so far.
    pub prompt: &'a [u32],
    /// The most tokens to generate; `None` until the context is full.
    pub max_tokens: Option<usize>,
    /// Strings that end the text and are not shown.
    pub stop: &'a [String],
    /// Prompt tokens evaluated at once; at least 1. Does not change the result.
    pub batch: usize,
    /// Go on after a token that ends the text; it shows as its piece.
    pub ignore_end: bool,
    /// Compute the digest (a millisecond a token with a large vocabulary; not counted as time of the decode).
    pub digest: bool,
}

/// Why a generation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error + 'static> {
    /// No tokens.
    #[error("the prompt is empty and the model begins no text by itself: give at least one character")]
    EmptyPrompt,
    /// More tokens than the context holds.
    #[error("the prompt has {tokens} tokens, but the context holds {context}: shorten it or raise --ctx")]
    PromptTooLong {
        /// Of the prompt.
        tokens: usize,
        /// What the state can hold.
        context: usize,
    },
    /// The model failed.
    #[error("evaluating token {position}")]
    Engine {
        /// Where in the text, from 0.
        position: usize,
        /// Why.
        source: E,
    },
    /// No token could be chosen.
    #[error("choosing token {position}")]
    Sample {
        /// Where in the text, from 0.
        position: usize,
        /// Why.
        source: sample::Error,
    },
    /// The text could not be written.
    #[error("cannot write the text")]
    Output {
        /// Why.
        source: io::Error,
    },
}

/// An engine and the tokens it has evaluated.
#[derive(Debug)]
pub struct Session<E> {
    engine: E,
    ids: Vec<u32>,
}

impl<E: Engine> Session<E> {
    /// Starts over: what the engine's state holds is forgotten.
    pub fn new(mut engine: E) -> Self {
        engine.truncate(0);
        Session { engine, ids: Vec::new() }
    }

    /// The engine. Its tokens are the session's to change.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// The tokens evaluated.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Generates a text; see [`Request`]. What the listener was shown is the answer's text.
    pub fn generate(
        &mut self,
        request: &Request<'_>,
        sampler: &mut Sampler,
        vocabulary: &impl Vocabulary,
        listener: &mut impl Listener,
    ) -> Result<Answer, Error<E::Error>> {
        let prompt = request.prompt;
        let context = self.engine.context();
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > context {
            return Err(Error::PromptTooLong { tokens: prompt.len(), context });
        }
        let mut answer = Answer {
            text: String::new(),
            tokens: Vec::new(),
            stop: StopReason::Length,
            prompt_tokens: prompt.len(),
            reused: self.reuse(prompt),
            digest: Digest::default(),
            timing: Timing::default(),
        };
        if !self.prefill(request, listener, &mut answer.timing)? {
            answer.stop = StopReason::Interrupted;
            return Ok(answer);
        }
        memory::sample();
        sampler.restart(prompt);
        let mut text = Text::new(request.stop);
        let max_tokens = request.max_tokens.unwrap_or(usize::MAX);
        answer.stop = loop {
            if answer.tokens.len() >= max_tokens {
                break StopReason::Length;
            }
            if listener.interrupted() {
                break StopReason::Interrupted;
            }
            if let Some(last) = answer.tokens.last().copied() {
                if self.ids.len() == context {
                    break StopReason::Context;
                }
                answer.timing.decode += self.eval(&[last])?;
                answer.timing.evals += 1;
            }
            let id = self.choose(request.digest, sampler, &mut answer)?;
            answer.tokens.push(id);
            if answer.tokens.len().is_multiple_of(MEMORY_INTERVAL) {
                memory::sample();
            }
            if !request.ignore_end && vocabulary.is_end(id) {
                break StopReason::End(id);
            }
            let stopped = text.push(&vocabulary.piece(id));
            text.show(listener, &mut answer.text)?;
            if let Some(stop) = stopped {
                break StopReason::StopString(stop);
            }
        };
        text.finish();
        text.show(listener, &mut answer.text)?;
        Ok(answer)
    }

    /// Goes back to the longest common beginning of the evaluated tokens and the prompt; returns its length. The
    /// prompt's last token is always left to evaluate, for its logits.
    fn reuse(&mut self, prompt: &[u32]) -> usize {
        let common = self.ids.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = self.engine.truncate(common.min(prompt.len().saturating_sub(1)));
        self.ids.truncate(kept);
        kept
    }

    /// Evaluates what is left of the prompt; false: interrupted.
    fn prefill(
        &mut self,
        request: &Request<'_>,
        listener: &mut impl Listener,
        timing: &mut Timing,
    ) -> Result<bool, Error<E::Error>> {
        let total = request.prompt.len();
        let rest = request.prompt.get(self.ids.len()..).unwrap_or_default();
        for part in rest.chunks(request.batch.max(1)) {
            listener.prompt(self.ids.len(), total);
            if listener.interrupted() {
                return Ok(false);
            }
            timing.prompt += self.eval(part)?;
            timing.prompt_evals += part.len();
        }
        listener.prompt(total, total);
        Ok(true)
    }

    fn eval(&mut self, ids: &[u32]) -> Result<Duration, Error<E::Error>> {
        let start = Instant::now();
        let position = self.ids.len();
        self.engine.eval(ids).map_err(|source| Error::Engine { position, source })?;
        self.ids.extend_from_slice(ids);
        Ok(start.elapsed())
    }

    fn choose(
        &mut self,
        digest: bool,
        sampler: &mut Sampler,
        answer: &mut Answer,
    ) -> Result<u32, Error<E::Error>> {
        let position = self.ids.len();
        let start = Instant::now();
        let logits = self.engine.logits().map_err(|source| Error::Engine { position, source })?;
        let mut spent = start.elapsed();
        if digest {
            answer.digest.add(logits.values);
        }
        let start = Instant::now();
        let id = match logits.largest.filter(|_| sampler.takes_the_largest()) {
            Some(id) => id,
            None => sampler.sample(logits.values).map_err(|source| Error::Sample { position, source })?,
        };
        sampler.accept(id);
        spent += start.elapsed();
        // The first choice belongs to no decoded token.
        if answer.timing.evals > 0 {
            answer.timing.decode += spent;
        }
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Params;
    use std::convert::Infallible;

    const END: u32 = 9;

    /// Says `script` one token at a time after a prompt of any content, then `END` for ever.
    struct Script {
        script: Vec<u32>,
        prompt: usize,
        context: usize,
        evaluated: Vec<u32>,
        /// Sizes of the calls of `eval`.
        calls: Vec<usize>,
        logits: Vec<f32>,
        /// Going back is possible to multiples of this only.
        grain: usize,
    }

    impl Engine for Script {
        type Error = Infallible;

        fn context(&self) -> usize {
            self.context
        }

        fn position(&self) -> usize {
            self.evaluated.len()
        }

        fn truncate(&mut self, position: usize) -> usize {
            self.evaluated.truncate(position / self.grain * self.grain);
            self.evaluated.len()
        }

        fn eval(&mut self, ids: &[u32]) -> Result<(), Infallible> {
            assert!(!ids.is_empty() && self.evaluated.len() + ids.len() <= self.context);
            self.evaluated.extend_from_slice(ids);
            self.calls.push(ids.len());
            Ok(())
        }

        fn logits(&mut self) -> Result<Logits<'_>, Infallible> {
            self.logits.fill(0.0);
            let next = self.script.get(self.evaluated.len() - self.prompt).copied().unwrap_or(END);
            self.logits[next as usize] = 1.0;
            Ok(Logits { values: &mut self.logits, largest: None })
        }
    }

    /// Pieces by id; 4 and 5 are the halves of é, `END` is an end that shows as `<end>`.
    struct Letters;

    impl Vocabulary for Letters {
        fn piece(&self, id: u32) -> Cow<'_, [u8]> {
            const PIECES: [&[u8]; 10] =
                [b"ab", b"C", b"DEF", b"GHIJ", b"\xc3", b"\xa9", b" ", b"\n", b"\xff", b"<end>"];
            Cow::Borrowed(PIECES[id as usize])
        }

        fn is_end(&self, id: u32) -> bool {
            id == END
        }
    }

    #[derive(Default)]
    struct Log {
        pieces: Vec<String>,
        progress: Vec<(usize, usize)>,
        /// Interrupts once this many pieces were shown.
        interrupt: Option<usize>,
        broken: bool,
    }

    impl Listener for Log {
        fn prompt(&mut self, done: usize, total: usize) {
            self.progress.push((done, total));
        }

        fn text(&mut self, text: &str) -> io::Result<()> {
            if self.broken {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.pieces.push(text.to_owned());
            Ok(())
        }

        fn interrupted(&self) -> bool {
            self.interrupt.is_some_and(|after| self.pieces.len() >= after)
        }
    }

    fn session(script: &[u32], prompt: usize, context: usize) -> Session<Script> {
        Session::new(Script {
            script: script.to_vec(),
            prompt,
            context,
            evaluated: vec![],
            calls: vec![],
            logits: vec![0.0; 10],
            grain: 1,
        })
    }

    fn request(prompt: &[u32]) -> Request<'_> {
        Request { prompt, max_tokens: None, stop: &[], batch: 4, ignore_end: false, digest: true }
    }

    fn run(
        session: &mut Session<Script>,
        request: &Request<'_>,
        log: &mut Log,
    ) -> Result<Answer, Error<Infallible>> {
        let mut sampler = Sampler::new(Params::default()).expect("good parameters");
        session.generate(request, &mut sampler, &Letters, log)
    }

    #[test]
    fn a_text_runs_until_its_end_token() {
        let mut session = session(&[0, 1, 6], 3, 64);
        let mut log = Log::default();
        let answer = run(&mut session, &request(&[1, 2, 3]), &mut log).expect("an answer");
        assert_eq!(answer.text, "abC ");
        assert_eq!(log.pieces, ["ab", "C", " "]);
        assert_eq!(answer.tokens, [0, 1, 6, END]);
        assert_eq!(answer.stop, StopReason::End(END));
        assert_eq!((answer.prompt_tokens, answer.reused), (3, 0));
        assert_eq!((answer.timing.prompt_evals, answer.timing.evals), (3, 3));
        // Nothing follows the end, so it is not evaluated.
        assert_eq!(session.ids(), [1, 2, 3, 0, 1, 6]);
        assert_eq!(session.engine().evaluated, session.ids());
    }

    #[test]
    fn an_end_can_be_ignored() {
        let ignore = Request { ignore_end: true, max_tokens: Some(3), ..request(&[1]) };
        let answer = run(&mut session(&[0], 1, 64), &ignore, &mut Log::default()).expect("an answer");
        assert_eq!((answer.text.as_str(), answer.stop), ("ab<end><end>", StopReason::Length));
    }

    #[test]
    fn stop_strings_over_tokens_neither_leak_nor_lose() {
        let stop = ["DEFGHIJ".to_owned()];
        for (script, text, reason) in [
            (&[0, 1, 2, 3, 0][..], "abC", StopReason::StopString("DEFGHIJ".into())),
            (&[0, 1, 2, 0], "abCDEFab", StopReason::End(END)),
            (&[0, 2], "abDEF", StopReason::End(END)),
        ] {
            let stopping = Request { stop: &stop, ..request(&[1]) };
            let answer = run(&mut session(script, 1, 64), &stopping, &mut Log::default()).expect("an answer");
            assert_eq!((answer.text.as_str(), answer.stop), (text, reason));
        }
    }

    #[test]
    fn characters_are_shown_whole() {
        let mut log = Log::default();
        let answer =
            run(&mut session(&[4, 5, 4, 0, 8, 4], 1, 64), &request(&[1]), &mut log).expect("an answer");
        assert_eq!(answer.text, "é\u{fffd}ab\u{fffd}\u{fffd}");
        assert_eq!(log.pieces.first().map(String::as_str), Some("é"));
        assert_eq!(log.pieces.concat(), answer.text);
    }

    #[test]
    fn length_and_context_end_a_text() {
        let script = [0; 100];
        let limited = |n| Request { max_tokens: Some(n), ..request(&[1, 1]) };
        for n in [0, 1, 5] {
            let mut session = session(&script, 2, 64);
            let answer = run(&mut session, &limited(n), &mut Log::default()).expect("an answer");
            assert_eq!((answer.tokens.len(), answer.stop), (n, StopReason::Length));
            assert_eq!(session.ids().len(), 2 + n.saturating_sub(1));
        }
        // Context n - 1, n, n + 1 for a prompt of n tokens: the last sampled token need not fit.
        let short = run(&mut session(&script, 2, 1), &request(&[1, 1]), &mut Log::default());
        assert_eq!(
            short.err().map(|e| e.to_string()).as_deref(),
            Some("the prompt has 2 tokens, but the context holds 1: shorten it or raise --ctx")
        );
        for (context, tokens) in [(2, 1), (3, 2), (20, 19)] {
            let answer = run(&mut session(&script, 2, context), &request(&[1, 1]), &mut Log::default())
                .expect("an answer");
            assert_eq!(
                (answer.tokens.len(), answer.stop),
                (tokens, StopReason::Context),
                "context {context}"
            );
        }
        assert!(matches!(
            run(&mut session(&script, 0, 64), &request(&[]), &mut Log::default()),
            Err(Error::EmptyPrompt)
        ));
    }

    #[test]
    fn the_prompt_is_cut_into_batches_with_progress() {
        let prompt = [1; 10];
        let mut digests = vec![];
        for (batch, calls) in [(4, &[4, 4, 2][..]), (1, &[1; 10]), (512, &[10])] {
            let mut session = session(&[], 10, 64);
            let mut log = Log::default();
            let answer =
                run(&mut session, &Request { batch, ..request(&prompt) }, &mut log).expect("an answer");
            assert_eq!(session.engine().calls, calls);
            assert_eq!(log.progress.last(), Some(&(10, 10)));
            assert!(log.progress.is_sorted());
            digests.push(answer.digest);
        }
        assert!(digests.iter().all(|digest| *digest == digests[0] && *digest != Digest::default()));
    }

    #[test]
    fn a_common_beginning_is_not_evaluated_again() {
        let mut session = session(&[0, 1], 3, 64);
        run(&mut session, &request(&[1, 2, 3]), &mut Log::default()).expect("an answer");
        // The next turn repeats the prompt and the answer, END included, and adds two tokens.
        session.engine.calls.clear();
        session.engine.prompt = 8;
        let next = [1, 2, 3, 0, 1, END, 6, 2];
        let answer = run(&mut session, &request(&next), &mut Log::default()).expect("an answer");
        assert_eq!(answer.reused, 5);
        assert_eq!(session.engine().calls.iter().sum::<usize>(), 3 + answer.timing.evals);
        // The same again leaves the last token to evaluate; another text starts anew where they part.
        session.engine.calls.clear();
        assert_eq!(run(&mut session, &request(&next), &mut Log::default()).expect("an answer").reused, 7);
        let other = [1, 2, 7, 7, 7, 7, 7, 7];
        assert_eq!(run(&mut session, &request(&other), &mut Log::default()).expect("an answer").reused, 2);
        assert_eq!(session.engine().evaluated, session.ids());
        // A state that cannot go back that far is evaluated from where it can.
        session.engine.grain = 3;
        let answer =
            run(&mut session, &request(&[1, 2, 7, 7, 7, 1, 1, 1]), &mut Log::default()).expect("an answer");
        assert_eq!(answer.reused, 3);
        assert_eq!(session.engine().evaluated, session.ids());
    }

    #[test]
    fn an_interruption_keeps_what_was_said() {
        let mut session = session(&[0; 50], 1, 64);
        let mut log = Log { interrupt: Some(2), ..Log::default() };
        let answer = run(&mut session, &request(&[1]), &mut log).expect("an answer");
        assert_eq!((answer.text.as_str(), answer.stop), ("abab", StopReason::Interrupted));
        let mut log = Log { interrupt: Some(0), ..Log::default() };
        let answer = run(&mut session, &request(&[2; 40]), &mut log).expect("an answer");
        assert_eq!((answer.tokens.len(), answer.stop), (0, StopReason::Interrupted));
        assert_eq!(session.ids().len(), 0);
    }

    #[test]
    fn a_lost_reader_ends_the_text_with_the_cause() {
        let mut log = Log { broken: true, ..Log::default() };
        let error = run(&mut session(&[0], 1, 64), &request(&[1]), &mut log).expect_err("the pipe is broken");
        let cause = std::error::Error::source(&error).and_then(|e| e.downcast_ref::<io::Error>());
        assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::BrokenPipe));
    }

    #[test]
    fn logits_that_are_no_numbers_name_their_position() {
        let mut session = session(&[0, 1, 2], 1, 64);
        session.engine.logits = vec![0.0; 10];
        let mut sampler = Sampler::new(Params { logit_bias: vec![(77, 1.0)], ..Params::default() })
            .expect("good parameters");
        let error = session.generate(&request(&[1]), &mut sampler, &Letters, &mut Log::default());
        assert!(matches!(error, Err(Error::Sample { position: 1, .. })));
    }
}
