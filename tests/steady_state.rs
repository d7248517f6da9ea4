//! A token costs no memory: what it needs is taken before the first one, so that a run which started can end.

mod common;

use common::counting::{Counting, calls};
use common::tiny::{Tiny, encode};
use twinband::gguf::File;
use twinband::head::{Engine, EngineOptions};
use twinband::kernel::isa::Isa;
use twinband::model::{KvType, Model};

#[global_allocator]
static COUNTING: Counting = Counting;

// One test only: the count is that of all threads.
#[test]
fn a_token_takes_no_memory() {
    let file = File::from_bytes(Tiny::new().format(encode::q4_0).build()).expect("a GGUF");
    for isa in Isa::all() {
        for threads in [1, 2, 3] {
            let model = Model::load(&file).expect("a model");
            let (kv, exact) = (KvType::F16, false);
            let options = EngineOptions { ctx: 64, kv, exact, threads, batch: 8, isa };
            let mut engine = Engine::new(model, &options).expect("memory");
            // The first prompt and the first token: scratch grows to what rows and batches need.
            engine.eval(&[1, 2, 3, 4, 5, 6, 7, 8]).expect("a batch");
            engine.logits().expect("logits");
            engine.eval(&[9]).expect("a token");
            engine.logits().expect("logits");
            let before = calls();
            engine.eval(&[3; 13]).expect("two batches");
            for id in 0..32 {
                engine.eval(&[id]).expect("a token");
                engine.logits().expect("logits");
            }
            // To hand a job to its threads, the pool takes a list of them, and now and then a few bytes for itself: fewer
            // times than there are jobs, so that one allocation a token would show.
            let jobs = 2 + 2 * 32;
            let taken = calls() - before;
            assert!(taken < jobs + jobs / 3, "{isa:?}, {threads} threads: {taken} times in {jobs} jobs");
        }
    }
}
