//! The worker process: everything that needs a graphics driver happens here, so that a driver can take down no more
//! than this. The engine starts it, talks to it over standard input and output, and computes itself whatever the worker
//! does not deliver.

use std::io::{self, IsTerminal as _};

use twinband_protocol::{Exit, WORKER_PROGRAM};

mod backend;
mod sandbox;
mod serve;

fn main() {
    if std::env::args_os().len() > 1 || io::stdin().is_terminal() {
        eprintln!("{WORKER_PROGRAM} is started by twinband, not by hand");
        sandbox::leave(Exit::Usage);
    }
    let exit = match sandbox::enter() {
        Ok(inherited) => serve::serve(inherited),
        Err(error) => {
            eprintln!("{WORKER_PROGRAM}: cannot limit itself: {error}");
            Exit::Limits
        }
    };
    // Not by returning: at an orderly end drivers run code of their own, and some crash in it.
    sandbox::leave(exit)
}
