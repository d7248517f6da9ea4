//! The worker as a process: what it says and with which code it ends, for every way a conversation can go.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use twinband_protocol::frame::{ReceiveError, receive, send};
use twinband_protocol::{Backend, Driver, Exit, FaultCode, Hello, Job, Message, Open, VERSION};

/// Runs the worker with `input` as all the engine ever says.
fn worker(input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_twinband-worker"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the worker starts");
    // It may end before it has read everything: that is not an error here.
    let _ = child.stdin.take().expect("stdin is a pipe").write_all(input);
    child.wait_with_output().expect("the worker ends")
}

fn frames(messages: &[Message]) -> Vec<u8> {
    let mut pipe = Vec::new();
    for message in messages {
        send(&mut pipe, 7, message).expect("a vector takes everything");
    }
    pipe
}

/// The messages in what the worker wrote, and how it ended.
fn answer(output: &Output) -> (Vec<Message>, Option<Exit>) {
    let mut pipe = &output.stdout[..];
    let mut messages = Vec::new();
    loop {
        match receive(&mut pipe) {
            Ok((seq, message)) => {
                assert_eq!(seq, 7, "an answer carries the number of its question");
                messages.push(message);
            }
            Err(ReceiveError::Closed) => break,
            Err(error) => panic!("after {messages:?}: {error}"),
        }
    }
    (messages, output.status.code().and_then(Exit::from_code))
}

fn open(orders: &str) -> Message {
    Message::Open(Open { backend: Backend::Null(orders.to_owned()), ..Open::default() })
}

fn hello() -> Message {
    Message::Hello(Hello::ours())
}

#[test]
fn a_greeting_is_answered_and_a_missing_driver_reported() {
    let driver = Driver::Manifest("/nonexistent.json".to_owned());
    let (messages, exit) =
        answer(&worker(&frames(&[hello(), Message::Open(Open { driver, ..Open::default() })])));
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_eq!(messages[0], hello());
    let Message::Fault(fault) = &messages[1] else { panic!("{messages:?}") };
    assert_eq!(exit, Some(Exit::Fault(fault.code)));
}

#[test]
fn the_null_device_opens_and_reports_faults_with_their_codes() {
    let (messages, exit) = answer(&worker(&frames(&[hello(), open(""), Message::Bye])));
    assert!(matches!(&messages[1], Message::Ready(device) if device.backend == "null"), "{messages:?}");
    assert_eq!(exit, Some(Exit::Bye));
    let cases = [
        ("no-device", FaultCode::NoDevice),
        ("no-fit", FaultCode::NoFitDevice),
        ("open-fail", FaultCode::Driver),
        ("dance", FaultCode::Input),
    ];
    for (orders, code) in cases {
        let (messages, exit) = answer(&worker(&frames(&[hello(), open(orders)])));
        assert!(matches!(&messages[1], Message::Fault(fault) if fault.code == code), "{messages:?}");
        assert_eq!(exit, Some(Exit::Fault(code)), "{orders}");
    }
}

#[test]
fn a_probe_needs_no_buffer_and_no_model() {
    let probe = Message::Probe(Open { backend: Backend::Null(String::new()), ..Open::default() });
    let (messages, exit) = answer(&worker(&frames(&[hello(), probe, Message::Bye])));
    assert!(matches!(&messages[1], Message::Report(report) if report.devices.len() == 1), "{messages:?}");
    assert_eq!(exit, Some(Exit::Bye));
}

#[test]
fn work_before_its_time_is_refused() {
    let job = Message::Job(Job { matrix: 0, slot: 0, first: 0, rows: 64 });
    let (messages, exit) = answer(&worker(&frames(&[hello(), job.clone()])));
    assert_eq!((messages.len(), exit), (1, Some(Exit::Protocol)));
    let (messages, exit) = answer(&worker(&frames(&[hello(), open(""), job])));
    assert!(matches!(&messages[2], Message::Fault(fault) if fault.code == FaultCode::Input), "{messages:?}");
    assert_eq!(exit, Some(Exit::Fault(FaultCode::Input)));
}

#[test]
fn it_leaves_soon_when_the_engine_is_gone_while_the_driver_hangs() {
    let started = std::time::Instant::now();
    let (messages, exit) = answer(&worker(&frames(&[hello(), open("open-hang")])));
    assert_eq!((messages.len(), exit), (1, Some(Exit::EngineGone)));
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn another_version_gets_ours_in_return_and_nothing_else() {
    let theirs = Hello { version: VERSION + 1, build: "from the future".to_owned() };
    let (messages, exit) = answer(&worker(&frames(&[Message::Hello(theirs)])));
    assert_eq!(messages, [Message::Hello(Hello::ours())]);
    assert_eq!(exit, Some(Exit::Version));
}

#[test]
fn a_silent_end_of_the_engine_ends_the_worker() {
    let (messages, exit) = answer(&worker(b""));
    assert_eq!((messages, exit), (vec![], Some(Exit::EngineGone)));
}

#[test]
fn goodbye_ends_it_in_peace() {
    let (messages, exit) = answer(&worker(&frames(&[Message::Bye])));
    assert_eq!((messages, exit), (vec![], Some(Exit::Bye)));
}

#[test]
fn anything_else_is_refused() {
    let ready = Message::Ready(Box::default());
    let hello = frames(&[hello()]);
    for input in [&frames(&[ready])[..], b"hello?\n", &[0xff; 4096], &hello[..hello.len() - 1]] {
        let output = worker(input);
        let (messages, exit) = answer(&output);
        assert_eq!((messages, exit), (vec![], Some(Exit::Protocol)));
        assert!(!output.stderr.is_empty(), "it says why");
    }
}

#[test]
fn arguments_are_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_twinband-worker"))
        .arg("--help")
        .output()
        .expect("the worker starts");
    assert_eq!(answer(&output), (vec![], Some(Exit::Usage)));
    assert!(!output.stderr.is_empty(), "it says why");
}
