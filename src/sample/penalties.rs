//! The last tokens of the text, and the penalties for repeating them.

use std::collections::VecDeque;

use super::Params;

/// The last `size` accepted tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    size: usize,
    last: VecDeque<u32>,
    sorted: Vec<u32>,
}

impl Window {
    /// A window of `size` tokens; 0 remembers nothing.
    pub(super) fn new(size: usize) -> Self {
        Window { size, ..Window::default() }
    }

    pub(super) fn clear(&mut self) {
        self.last.clear();
    }

    pub(super) fn push(&mut self, id: u32) {
        if self.size == 0 {
            return;
        }
        if self.last.len() == self.size {
            self.last.pop_front();
        }
        self.last.push_back(id);
    }

    /// Lowers the logits of the window's tokens. Ids outside of `logits` are passed over.
    pub(super) fn penalise(&mut self, params: &Params, logits: &mut [f32]) {
        self.sorted.clear();
        self.sorted.extend(&self.last);
        self.sorted.sort_unstable();
        for run in self.sorted.chunk_by(|a, b| a == b) {
            let Some(logit) = run.first().and_then(|&id| logits.get_mut(id as usize)) else { continue };
            if *logit > 0.0 {
                *logit /= params.repeat_penalty;
            } else {
                *logit *= params.repeat_penalty;
            }
            *logit -= run.len() as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_count_the_window_only() {
        let params = Params {
            repeat_penalty: 2.0,
            frequency_penalty: 0.25,
            presence_penalty: 0.5,
            penalty_window: 3,
            ..Params::default()
        };
        let mut window = Window::new(3);
        for id in [0, 2, 1, 2] {
            window.push(id);
        }
        let mut logits = [4.0, 4.0, -4.0, 4.0];
        window.penalise(&params, &mut logits);
        // 0 has left the window; 1 once: 4 / 2 - 0.25 - 0.5; 2 twice: -4 * 2 - 2 * 0.25 - 0.5.
        assert_eq!(logits, [4.0, 1.25, -9.0, 4.0]);
    }

    #[test]
    fn an_id_outside_of_the_vocabulary_is_no_matter() {
        let mut window = Window::new(usize::MAX);
        window.push(7);
        let mut logits = [1.0];
        window.penalise(&Params { presence_penalty: 1.0, ..Params::default() }, &mut logits);
        assert_eq!(logits, [1.0]);
    }

    #[test]
    fn a_full_window_allocates_nothing() {
        let mut window = Window::new(5);
        let mut logits = [0.0; 4];
        let mut push = |window: &mut Window, n| {
            for id in 0..n {
                window.push(id % 4);
                window.penalise(&Params::default(), &mut logits);
            }
        };
        push(&mut window, 10);
        let before = (window.last.capacity(), window.sorted.capacity());
        push(&mut window, 100);
        assert_eq!((window.last.capacity(), window.sorted.capacity()), before);
    }
}
