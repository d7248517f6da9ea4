//! The conversation with the engine, from greeting to goodbye.

use std::io::{Read, Write};

use twinband_protocol::frame::{self, ReceiveError};
use twinband_protocol::{Exit, Fault, FaultCode, Hello, Message, VERSION};

use crate::backend;

/// Serves one engine until it says goodbye or leaves; the result tells how the conversation ended.
pub fn serve(input: &mut impl Read, output: &mut impl Write) -> Exit {
    match conversation(input, output) {
        Ok(exit) | Err(exit) => exit,
    }
}

fn conversation(input: &mut impl Read, output: &mut impl Write) -> Result<Exit, Exit> {
    let (seq, engine) = match receive(input)? {
        (seq, Message::Hello(hello)) => (seq, hello),
        (_, Message::Bye) => return Ok(Exit::Bye),
        (_, other) => return Err(unexpected(&other)),
    };
    send(output, seq, Message::Hello(Hello::ours()))?;
    if engine.version != VERSION {
        return Err(Exit::Version);
    }
    match backend::open() {
        Ok(ready) => send(output, seq, Message::Ready(ready))?,
        Err(fault) => {
            let exit = exit_for(&fault);
            send(output, seq, Message::Fault(fault))?;
            return Err(exit);
        }
    }
    match receive(input)? {
        (_, Message::Bye) => Ok(Exit::Bye),
        (_, other) => Err(unexpected(&other)),
    }
}

fn exit_for(fault: &Fault) -> Exit {
    match fault.code {
        FaultCode::NoBackend => Exit::NoBackend,
    }
}

fn receive(input: &mut impl Read) -> Result<(u64, Message), Exit> {
    frame::receive(input).map_err(|error| match error {
        ReceiveError::Closed => Exit::EngineGone,
        error => {
            eprintln!("{}: {error}", twinband_protocol::WORKER_PROGRAM);
            Exit::Protocol
        }
    })
}

/// An engine that no longer reads is gone, whatever the pipe says about it.
fn send(output: &mut impl Write, seq: u64, message: Message) -> Result<(), Exit> {
    frame::send(output, seq, &message).map_err(|_| Exit::EngineGone)
}

fn unexpected(message: &Message) -> Exit {
    eprintln!("{}: did not expect {} now", twinband_protocol::WORKER_PROGRAM, message.name());
    Exit::Protocol
}
