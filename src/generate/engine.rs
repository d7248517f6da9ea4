//! The model on the CPU as the loop's engine.

use super::{Engine, Logits};
use crate::head;
use crate::model::EvalError;

impl Engine for head::Engine<'_> {
    type Error = EvalError;

    fn context(&self) -> usize {
        self.ctx()
    }

    fn position(&self) -> usize {
        self.position()
    }

    fn truncate(&mut self, position: usize) -> usize {
        self.truncate(position);
        self.position()
    }

    fn eval(&mut self, ids: &[u32]) -> Result<(), EvalError> {
        self.eval(ids)
    }

    fn logits(&mut self) -> Result<Logits<'_>, EvalError> {
        self.logits()?;
        let (values, largest) = self.computed();
        debug_assert_eq!(largest as usize, head::argmax(values));
        Ok(Logits { values, largest: Some(largest) })
    }
}
