//! The forward pass of a decoder.

use super::pass::{Faults, Pass, Place};
use super::{EvalError, Model, State};
use crate::kernel::isa::Isa;
use crate::kernel::par::Team;

/// Appends tokens to the sequence: fills the cache and leaves the final hidden vector of each in `state`.
///
/// One team run; every (token, row) pair is computed as it would be alone, so how tokens are cut into batches changes no
/// bit. There must be at most [`StateOptions::batch`](super::StateOptions) tokens. After an error the sequence is as it
/// was before.
pub fn forward(
    model: &Model<'_>,
    state: &mut State,
    team: &Team,
    isa: Isa,
    ids: &[u32],
) -> Result<(), EvalError> {
    let (c, w) = (&model.config, &model.weights);
    let (pos, ctx, exact) = (state.position(), state.options().ctx, state.options().exact);
    if ids.len() > ctx - pos || ids.len() > state.options().batch {
        return Err(EvalError::ContextFull { asked: ids.len(), position: pos, ctx });
    }
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= c.vocab) {
        return Err(EvalError::Token { id, vocab: c.vocab });
    }
    let p = Pass { model, isa, exact, pos, bufs: state.lend(c, ids.len()), faults: Faults::new() };
    let b = &p.bufs;
    team.run(|m| {
        let leads = m.index() == 0;
        p.embed(m, ids);
        for (i, l) in w.layers.iter().enumerate() {
            p.norm_input(m, &l.attn_norm, i, Place::AttnInput);
            m.sync();
            if leads && i == 0 {
                model.embedded();
            }
            p.linear(m, &b.xn, &[(&l.q, false, &b.q), (&l.k, false, &b.k), (&l.v, true, &b.v)]);
            m.sync();
            p.rotate(m, i, l);
            m.sync();
            p.attend(m, i);
            m.sync();
            p.attended(m, i);
            m.sync();
            p.linear(m, &b.att, &[(&l.o, false, &b.y)]);
            m.sync();
            p.add(m, l.post_attn_norm.as_deref());
            p.norm_input(m, &l.ffn_norm, i, Place::FfnInput);
            m.sync();
            p.linear(m, &b.xn, &[(&l.gate, false, &b.h.f32), (&l.up, false, &b.up)]);
            m.sync();
            p.activate(m, i);
            m.sync();
            p.linear(m, &b.h, &[(&l.down, true, &b.y)]);
            m.sync();
            if leads {
                model.after_layer(i);
            }
            p.add(m, l.post_ffn_norm.as_deref());
        }
        p.finish(m);
    });
    let result = p.faults.result(c, pos);
    state.advance(result.is_ok().then_some(ids.len()));
    result
}
