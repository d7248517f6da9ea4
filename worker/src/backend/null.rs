//! A device that is none: plain code on the CPU, slow and right, and everything that can go wrong with a driver on
//! request. For tests of all that surrounds a device, on machines without one.
//!
//! The orders are words separated by white space. A word is `name`, `name=number`, or either with `@first` or
//! `@first-last` behind it: from which job on, or for which jobs. Jobs with rows are counted, from 1.
//!
//! | order | what happens |
//! |---|---|
//! | `open-slow=MS` `load-slow=MS` `slow=MS` | it takes that much longer |
//! | `open-hang` `load-hang` `hang` | no answer, for ever |
//! | `open-exit0` `load-exit0` `exit0` | the process ends with status 0 and without a word |
//! | `open-abort` `load-abort` `abort` `segv` | it dies of a signal |
//! | `no-device` `no-fit` `open-fail` `load-fail` `lost` | it reports the fault |
//! | `memory=ROWS` | more rows than that do not fit |
//! | `stop` | it stops itself as by SIGSTOP |
//! | `panic` | a mistake in the worker's own code |
//! | `corrupt=ROW` | the lowest bit of one result is wrong |
//! | `nan=ROW` | one result is NaN |
//! | `garbage` | text in the pipe before the answer |
//! | `idle-exit=MS` | that long after the answer, the process ends |
//! | `log=PATH` | a byte is appended to a file whenever a device is opened |
//! | `once=PATH` | all of this only if the file does not exist yet; it is created |

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use half::f16;
use nix::sys::signal::{Signal, raise};
use twinband_protocol::shm::{Activations, Part, Shared};
use twinband_protocol::{Device, Done, Exit, Fault, FaultCode, Job, Load, Loaded, Report};

use super::Backend;
use super::groups::take_apart;
use crate::sandbox;

/// Words with a number, and whether it must be there.
const WORDS: &[(&str, bool)] = &[
    ("open-slow", true),
    ("load-slow", true),
    ("slow", true),
    ("open-hang", false),
    ("load-hang", false),
    ("hang", false),
    ("open-exit0", false),
    ("load-exit0", false),
    ("exit0", false),
    ("open-abort", false),
    ("load-abort", false),
    ("abort", false),
    ("segv", false),
    ("no-device", false),
    ("no-fit", false),
    ("open-fail", false),
    ("load-fail", false),
    ("lost", false),
    ("memory", true),
    ("stop", false),
    ("panic", false),
    ("corrupt", true),
    ("nan", true),
    ("garbage", false),
    ("idle-exit", true),
];

/// One word of the orders.
#[derive(Debug, PartialEq, Eq)]
struct Order {
    name: &'static str,
    value: u64,
    first: u64,
    last: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Orders {
    list: Vec<Order>,
    log: Option<String>,
    once: Option<String>,
}

impl Orders {
    fn parse(text: &str) -> Option<Self> {
        let mut orders = Self::default();
        for word in text.split_whitespace() {
            if let Some(path) = word.strip_prefix("log=") {
                orders.log = Some(path.to_owned());
            } else if let Some(path) = word.strip_prefix("once=") {
                orders.once = Some(path.to_owned());
            } else {
                orders.list.push(Order::parse(word)?);
            }
        }
        Some(orders)
    }

    /// The number of an order that holds for a job, 0 where it has none.
    fn at(&self, name: &str, job: u64) -> Option<u64> {
        let holds = |order: &&Order| order.name == name && (order.first..=order.last).contains(&job);
        self.list.iter().find(holds).map(|order| order.value)
    }

    /// What can happen at every stage, told apart by what their names begin with.
    fn disturb(&self, stage: &str, job: u64) {
        let at = |name: &str| self.at(&format!("{stage}{name}"), job);
        if let Some(ms) = at("slow") {
            thread::sleep(Duration::from_millis(ms));
        }
        if at("hang").is_some() {
            loop {
                thread::sleep(Duration::from_secs(3600));
            }
        }
        if at("exit0").is_some() {
            sandbox::leave(Exit::Bye);
        }
        if at("abort").is_some() {
            std::process::abort();
        }
    }
}

impl Order {
    fn parse(word: &str) -> Option<Self> {
        let (word, jobs) = word.split_once('@').map_or((word, None), |(word, jobs)| (word, Some(jobs)));
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let (name, needs) = WORDS.iter().find(|(known, _)| *known == name)?;
        let value = match value {
            Some(value) => value.parse().ok()?,
            None if *needs => return None,
            None => 0,
        };
        let (first, last) = match jobs.map(|jobs| jobs.split_once('-').unwrap_or((jobs, ""))) {
            None => (0, u64::MAX),
            Some((first, "")) => (first.parse().ok()?, u64::MAX),
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
        };
        Some(Self { name, value, first, last })
    }
}

/// Rows taken from the model file.
struct Matrix {
    load: Load,
    /// `[rows][row_bytes]`
    weights: Vec<u8>,
}

/// The device.
pub struct Null {
    device: Device,
    orders: Orders,
    matrices: Vec<Matrix>,
    jobs: u64,
}

fn fault(code: FaultCode, text: impl Into<String>) -> Fault {
    Fault { code, text: text.into() }
}

/// A format that this device knows: ggml code, bytes of a block of 32, the dot of a block's codes and 32 others.
struct Format {
    code: u32,
    block: usize,
    isum: fn(&[u8], &[i8]) -> i32,
}

const FORMATS: [Format; 2] = [
    Format {
        code: 2, // Q4_0: f16 scale, then elements j and j + 16 in the nibbles of byte j, less 8.
        block: 18,
        isum: |codes, x| {
            let (low, high) = x.split_at(16);
            let pairs = codes.iter().zip(low.iter().zip(high));
            pairs
                .map(|(&byte, (&l, &h))| {
                    (i32::from(byte & 15) - 8) * i32::from(l) + (i32::from(byte >> 4) - 8) * i32::from(h)
                })
                .sum()
        },
    },
    Format {
        code: 8, // Q8_0: f16 scale, then 32 signed bytes.
        block: 34,
        isum: |codes, x| codes.iter().zip(x).map(|(&q, &x)| i32::from(q as i8) * i32::from(x)).sum(),
    },
];

impl Null {
    pub fn open(orders: &str) -> Result<Self, Fault> {
        let mut orders = Orders::parse(orders)
            .ok_or_else(|| fault(FaultCode::Input, format!("cannot follow the orders `{orders}`")))?;
        if let Some(path) = &orders.log {
            let log = fs::OpenOptions::new().create(true).append(true).open(path);
            let _ = log.and_then(|mut file| file.write_all(b"."));
        }
        if orders
            .once
            .as_ref()
            .is_some_and(|path| fs::OpenOptions::new().create_new(true).write(true).open(path).is_err())
        {
            orders.list.clear();
        }
        orders.disturb("open-", 0);
        let reports = [
            ("no-device", FaultCode::NoDevice, "there is no device"),
            ("no-fit", FaultCode::NoFitDevice, "no device may be used"),
            ("open-fail", FaultCode::Driver, "the driver failed to open the device"),
        ];
        for (name, code, text) in reports {
            if orders.at(name, 0).is_some() {
                return Err(fault(code, text));
            }
        }
        let device = Device {
            backend: "null".to_owned(),
            name: "null device".to_owned(),
            uuid: *b"twinband null 01",
            driver: "none".to_owned(),
            formats: FORMATS.iter().map(|f| f.code).collect(),
            ..Device::default()
        };
        Ok(Self { device, orders, matrices: Vec::new(), jobs: 0 })
    }
}

impl Backend for Null {
    fn device(&self) -> &Device {
        &self.device
    }

    fn load(&mut self, load: &Load, model: &File, activations: Activations) -> Result<Loaded, Fault> {
        let started = Instant::now();
        self.orders.disturb("load-", 0);
        if self.orders.at("load-fail", 0).is_some() {
            return Err(fault(FaultCode::Driver, "the driver failed to load"));
        }
        if self.orders.at("memory", 0).is_some_and(|most| u64::from(load.rows) > most) {
            return Err(fault(FaultCode::Memory, format!("{} rows do not fit", load.rows)));
        }
        let format = format_of(load)?;
        if activations != (Activations::Q8 { block: 32 }) {
            return Err(fault(FaultCode::Format, "only int8 activations in blocks of 32"));
        }
        if load.row_bytes == 0 || load.cols as usize / 32 * format.block != load.row_bytes as usize {
            return Err(fault(FaultCode::Input, "a row's bytes do not fit its elements"));
        }
        let bytes = u64::from(load.rows) * u64::from(load.row_bytes);
        let size = model.metadata().map_or(0, |meta| meta.len());
        if load.offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(fault(FaultCode::Input, "the rows lie outside of the model file"));
        }
        let mut weights = vec![0; bytes as usize];
        model
            .read_exact_at(&mut weights, load.offset)
            .map_err(|e| fault(FaultCode::Input, format!("cannot read the model file: {e}")))?;
        if load.interleaved {
            let together = weights.clone();
            take_apart(&together, load.row_bytes as usize, format.block, &mut weights);
        }
        self.matrices.retain(|matrix| matrix.load.matrix != load.matrix);
        self.matrices.push(Matrix { load: *load, weights });
        Ok(Loaded { bytes, micros: started.elapsed().as_micros() as u64 })
    }

    fn run(&mut self, job: &Job, shared: &Shared) -> Result<Done, Fault> {
        if job.rows == 0 {
            return Ok(Done { micros: 0 });
        }
        let started = Instant::now();
        self.jobs += 1;
        let n = self.jobs;
        self.orders.disturb("", n);
        let at = |name: &str| self.orders.at(name, n);
        if at("stop").is_some() {
            let _ = raise(Signal::SIGSTOP);
        }
        if at("segv").is_some() {
            // The first is taken by the runtime's own handler, which steps aside for the second.
            let _ = raise(Signal::SIGSEGV).and_then(|()| raise(Signal::SIGSEGV));
        }
        if at("panic").is_some() {
            panic!("ordered at job {n}");
        }
        if at("lost").is_some() {
            return Err(fault(FaultCode::DeviceLost, format!("the device was lost at job {n}")));
        }
        let matrix = self.matrices.iter().find(|m| m.load.matrix == job.matrix);
        let matrix = matrix.ok_or_else(|| fault(FaultCode::Input, "no such matrix"))?;
        let mut results = matrix.multiply(job, shared)?;
        let row = |value: u64| (value % u64::from(job.rows)) as usize;
        if let Some(value) = at("corrupt") {
            let result = &mut results[row(value)];
            *result = f32::from_bits(result.to_bits() ^ 1);
        }
        if let Some(value) = at("nan") {
            results[row(value)] = f32::NAN;
        }
        shared.put(job.slot, Part::Results, &results);
        if at("garbage").is_some() {
            sandbox::write_rubbish(b"MESA: warning: a driver that talks where it should not\n");
        }
        if let Some(ms) = at("idle-exit") {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(ms));
                sandbox::leave(Exit::Bye);
            });
        }
        Ok(Done { micros: started.elapsed().as_micros() as u64 })
    }
}

fn format_of(load: &Load) -> Result<&'static Format, Fault> {
    let format = FORMATS.iter().find(|format| format.code == load.format);
    format.ok_or_else(|| fault(FaultCode::Format, format!("format {} is not known here", load.format)))
}

impl Matrix {
    /// The rows of a job, by the numeric contract: exact integers in a block, one accumulator from the first block to
    /// the last, every product and sum rounded by itself.
    fn multiply(&self, job: &Job, shared: &Shared) -> Result<Vec<f32>, Fault> {
        let format = format_of(&self.load)?;
        let skip = job.first.checked_sub(self.load.first);
        let inside = |skip: &u32| skip.checked_add(job.rows).is_some_and(|end| end <= self.load.rows);
        let skip = skip.filter(inside).ok_or_else(|| fault(FaultCode::Input, "rows that are not loaded"))?;
        let cols = self.load.cols as usize;
        let (mut codes, mut scales) = (vec![0i8; cols], vec![0f32; cols / 32]);
        shared.get(job.slot, Part::Codes, 0, &mut codes);
        shared.get(job.slot, Part::Scales, 0, &mut scales);
        let rows = self.weights.chunks_exact(self.load.row_bytes as usize);
        let dot = |row: &[u8]| {
            let mut acc = 0.0;
            for ((block, x), x_scale) in
                row.chunks_exact(format.block).zip(codes.chunks_exact(32)).zip(&scales)
            {
                let w_scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                acc += (format.isum)(&block[2..], x) as f32 * (w_scale * x_scale);
            }
            acc
        };
        Ok(rows.skip(skip as usize).take(job.rows as usize).map(dot).collect())
    }
}

/// What a look at this device finds.
pub fn probe(orders: &str) -> Report {
    match Null::open(orders) {
        Ok(null) => Report { devices: vec![null.device], ..Report::default() },
        Err(fault) => Report { troubles: vec![fault.text], ..Report::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_hold_for_the_jobs_they_name() {
        let orders = Orders::parse("slow=50@20 hang@7-7 corrupt=3@2-4  open-fail").expect("they are fine");
        assert_eq!(
            (orders.at("slow", 19), orders.at("slow", 20), orders.at("slow", 1000)),
            (None, Some(50), Some(50))
        );
        assert_eq!((orders.at("hang", 6), orders.at("hang", 7), orders.at("hang", 8)), (None, Some(0), None));
        assert_eq!((orders.at("corrupt", 1), orders.at("corrupt", 4)), (None, Some(3)));
        assert_eq!(orders.at("open-fail", 0), Some(0));
        for bad in ["slow", "slow=x", "dance", "hang@", "hang@x", "hang@1-x", "slow=1=2"] {
            assert_eq!(Orders::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn blocks_are_read_as_the_formats_say() {
        // By hand: Q4_0 codes 0..15 in the low nibbles and 15..0 in the high ones, activations 1 and 2.
        let codes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let mut x = [1i8; 32];
        x[16..].fill(2);
        // sum(i - 8) = -8, sum(15 - i - 8) = -8.
        assert_eq!((FORMATS[0].isum)(&codes, &x), -8 - 16);
        let codes: Vec<u8> = (0..32).map(|i| (i as i8 - 16) as u8).collect();
        assert_eq!((FORMATS[1].isum)(&codes, &[-127; 32]), 127 * 16);
    }
}
