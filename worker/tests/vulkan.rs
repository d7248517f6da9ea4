//! The Vulkan backend on software drivers: the bits of its results, and what it does when things are not as they should
//! be.

mod support;

use std::fs;
use std::path::Path;

use support::reference::{ALL, Format, Random, dot, matrix, vector};
use support::{Data, Software, Worker, drivers, files_in, lavapipe};
use twinband_protocol::shm::Layout;
use twinband_protocol::{Driver, FaultCode, Job, Load, Loader, Open, TILE};

const TEST: &str = "TWINBAND_VULKAN_TEST";

/// A loaded matrix and everything to check products with it.
struct Bench {
    worker: Worker,
    data: Data,
    format: Format,
    weights: Vec<u8>,
    rows: usize,
    cols: usize,
    first: u32,
    random: Random,
    what: String,
}

impl Bench {
    fn new(driver: &Software, format: Format, rows: usize, cols: usize, env: &[(&str, &str)]) -> Self {
        Self::laid_out(driver, format, (rows, cols), env, false)
    }

    /// With the rows of the file in groups of eight, or one after the other.
    fn laid_out(
        driver: &Software,
        format: Format,
        (rows, cols): (usize, usize),
        env: &[(&str, &str)],
        interleaved: bool,
    ) -> Self {
        let mut random = Random((rows * 31 + cols) as u64);
        let weights = matrix(format, rows, cols, &mut random);
        // The rows need not begin where the file does, nor be the first of their matrix.
        let before = 52usize;
        let first = 3 * TILE;
        let stored = if interleaved { in_groups(format, cols, &weights) } else { weights.clone() };
        let file: Vec<u8> = std::iter::repeat_n(0xee, before).chain(stored).collect();
        let layout =
            Layout { cols: cols as u32, activations: format.activations(), rows: rows as u32, slots: 2 };
        let data = Data::new(layout, &file);
        let what = format!("{} {format:?} {rows} x {cols} {env:?}", driver.name);
        let mut worker = Worker::start(env, Some(&data));
        let device = worker.open(driver.open()).expect(&what);
        assert!(device.formats.contains(&(format as u32)), "{what}");
        let load = Load {
            matrix: 7,
            format: format as u32,
            cols: cols as u32,
            row_bytes: (weights.len() / rows) as u32,
            offset: before as u64,
            first,
            rows: rows as u32,
            interleaved,
        };
        let loaded = worker.load(load).expect(&what);
        assert!(loaded.bytes >= weights.len() as u64);
        Self { worker, data, format, weights, rows, cols, first, random, what }
    }

    /// One job with a vector of a kind; every result must have the reference's bits.
    fn check(&mut self, kind: usize, slot: u32, first: usize, rows: usize) {
        let x = vector(self.format, self.cols, kind, &mut self.random);
        x.put(&self.data.shared, slot);
        let job = Job { matrix: 7, slot, first: self.first + first as u32, rows: rows as u32 };
        self.worker.run(job).expect(&self.what);
        let got = self.data.results(slot, rows);
        let row_bytes = self.weights.len() / self.rows;
        let want = self.weights.chunks_exact(row_bytes).skip(first).map(|row| dot(self.format, row, &x));
        let wrong: Vec<_> =
            got.iter().zip(want).enumerate().filter(|(_, (a, b))| a.to_bits() != b.to_bits()).collect();
        assert!(
            wrong.is_empty(),
            "{} vector {kind} rows {first}+{rows}: {} differ, first {:?}",
            self.what,
            wrong.len(),
            wrong[0]
        );
    }
}

/// Rows in groups of eight, the last of what is left: block b of row i of a group of r rows is its block `b r + i`.
fn in_groups(format: Format, cols: usize, weights: &[u8]) -> Vec<u8> {
    let (block, bytes) = format.geometry();
    let blocks = cols / block;
    let rows: Vec<Vec<&[u8]>> =
        weights.chunks(blocks * bytes).map(|row| row.chunks(bytes).collect()).collect();
    rows.chunks(8)
        .flat_map(|group| (0..blocks).flat_map(move |b| group.iter().flat_map(move |row| row[b])))
        .copied()
        .collect()
}

/// Row lengths with an odd and an even number of blocks, and for f16 with a part of a step.
fn lengths(format: Format) -> [usize; 2] {
    match format.geometry().0 {
        1 => [100, 13],
        block => [3 * block, 2 * block],
    }
}

#[test]
fn every_format_gives_the_cpus_bits() {
    for driver in drivers() {
        for format in ALL {
            for cols in lengths(format) {
                let mut bench = Bench::new(&driver, format, 1003, cols, &[(TEST, "nan")]);
                for kind in 0..5 {
                    bench.check(kind, kind as u32 % 2, 0, 1003);
                }
                for (first, rows) in [(64, 1), (960, 43), (128, 700), (0, 0), (0, 64)] {
                    bench.check(0, 0, first, rows);
                }
            }
        }
    }
}

/// A last group of three rows; and many buffers and submits, some of which begin in the middle of what is read at once.
#[test]
fn rows_in_groups_of_eight_are_taken_apart() {
    for driver in drivers() {
        for format in ALL.into_iter().filter(|format| format.geometry().0 > 1) {
            let cut = format!("nan,chunk={}", format.geometry().1 * 3 * 64 * 3 + 1000);
            for env in [&[(TEST, "nan")][..], &[(TEST, &cut)]] {
                let shape = (1003, lengths(format)[0]);
                let mut bench = Bench::laid_out(&driver, format, shape, env, true);
                bench.check(0, 0, 0, 1003);
                bench.check(4, 1, 960, 43);
            }
        }
    }
}

#[test]
fn odd_sizes_are_whole() {
    for driver in drivers() {
        let mut one = Bench::new(&driver, Format::Q4_0, 1, 576, &[(TEST, "nan")]);
        one.check(0, 0, 0, 1);
        // More tiles than workgroups may be: both dimensions are used.
        let mut many = Bench::new(&driver, Format::Q4_0, 65_537, 32, &[(TEST, "nan,groups=100")]);
        many.check(0, 0, 0, 65_537);
        many.check(4, 1, 65_536, 1);
        // Rows as long as they may be.
        for format in [Format::Q4_0, Format::Q6K, Format::F16] {
            let mut long = Bench::new(&driver, format, 2, 131_072, &[(TEST, "nan")]);
            long.check(0, 0, 0, 2);
        }
    }
}

#[test]
fn work_that_is_cut_gives_the_same() {
    for driver in drivers() {
        for format in [Format::Q4_0, Format::Q6K] {
            // Three tiles a buffer, two workgroups in a row, five tiles a submit, activations by way of staging.
            let tile = format.geometry().1.div_ceil(4) * 4 * 64;
            let cut = format!("nan,staged,groups=2,chunk={},submit={}", tile * 3, tile * 5);
            let cols = format.geometry().0;
            let mut bench = Bench::new(&driver, format, 1003, cols, &[(TEST, &cut)]);
            for kind in 0..5 {
                bench.check(kind, 0, 0, 1003);
            }
            bench.check(0, 1, 192, 500);
        }
    }
}

/// Larger than the range that every device has to allow, and that lavapipe has: 151 MB.
#[test]
fn a_head_larger_than_a_buffer_may_be_is_split() {
    let Some(driver) = lavapipe() else { return };
    let mut bench = Bench::new(&driver, Format::Q4_0, 262_144, 1024, &[(TEST, "nan")]);
    // The first job is cut small, because nothing is known of the device's speed; the second is not.
    bench.check(0, 0, 0, 262_144);
    bench.check(4, 1, 0, 262_144);
    bench.check(1, 0, 131_072 - 64, 128);
}

/// Whole heads of small models, as they are used.
#[test]
fn heads_of_real_sizes() {
    for driver in drivers() {
        for (format, rows, cols) in [(Format::Q4_0, 49_152, 576), (Format::Q6K, 8192, 2048)] {
            let mut bench = Bench::new(&driver, format, rows, cols, &[(TEST, "nan")]);
            bench.check(0, 0, 0, rows);
            bench.check(4, 1, rows / 2, rows / 2);
        }
    }
}

/// Through the loader with Khronos' validation layer, its synchronisation checks included.
#[test]
fn the_validation_layer_finds_nothing() {
    const LAYER: &str = "VK_LAYER_KHRONOS_validation";
    let Some(driver) = lavapipe() else { return };
    let layers = std::env::var("TWINBAND_TEST_LAYERS").unwrap_or_default();
    let mut env = vec![("VK_DRIVER_FILES", &*driver.manifest)];
    if !layers.is_empty() {
        env.push(("VK_LAYER_PATH", &layers));
    }
    if !Worker::start(&env, None).probe(by_loader()).layers.iter().any(|l| l == LAYER) {
        eprintln!("SKIPPED: {LAYER} is not installed, and TWINBAND_TEST_LAYERS does not name its folder");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let settings = format!(
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n\
         khronos_validation.report_flags = error,warn,perf\n\
         khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT\n\
         khronos_validation.log_filename = {}\n",
        log.display()
    );
    fs::write(folder.path().join("vk_layer_settings.txt"), settings).expect("space");
    let settings = folder.path().display().to_string();
    env.extend([("VK_INSTANCE_LAYERS", LAYER), ("VK_LAYER_SETTINGS_PATH", &*settings)]);
    for options in ["nan,chunk=80000,submit=100000", "staged"] {
        let env: Vec<_> = env.iter().copied().chain([(TEST, options)]).collect();
        for format in [Format::Q4_0, Format::Q6K, Format::F16] {
            let way = Software { name: "lavapipe by the loader", manifest: String::new() };
            let mut bench = Bench::new(&way, format, 1003, lengths(format)[0], &env);
            for kind in 0..3 {
                bench.check(kind, kind as u32 % 2, 0, 1003);
            }
            bench.check(0, 0, 64, 300);
        }
    }
    let said = fs::read_to_string(&log).expect("the layer wrote its log");
    assert!(said.trim().is_empty(), "{said}");
}

#[test]
fn neither_vector_width_nor_stale_memory_matters() {
    let Some(driver) = lavapipe() else { return };
    for width in ["128", "256", "512"] {
        for format in ALL {
            let env = [("LP_NATIVE_VECTOR_WIDTH", width), ("LVP_POISON_MEMORY", "1")];
            let mut bench = Bench::new(&driver, format, 200, lengths(format)[0], &env);
            bench.check(0, 0, 0, 200);
            bench.check(4, 1, 0, 200);
        }
    }
}

#[test]
fn thousands_of_jobs_with_changing_inputs() {
    for driver in drivers() {
        for (options, jobs) in [("nan", 10_000), ("staged", 2000)] {
            let mut bench = Bench::new(&driver, Format::Q4_0, 256, 64, &[(TEST, options)]);
            for i in 0..jobs {
                // More ranges than recordings are kept.
                let first = i % 12 / 4 * 64;
                bench.check(i % 5, i as u32 % 2, first, 256 - first - i % 4);
            }
        }
    }
}

#[test]
fn two_workers_share_a_device() {
    for driver in drivers() {
        let bench = || Bench::new(&driver, Format::Q8_0, 300, 64, &[]);
        let (mut a, mut b) = (bench(), bench());
        for i in 0..20 {
            a.check(i, 0, 0, 300);
            b.check(i, 0, 64, 100);
        }
    }
}

#[test]
fn a_matrix_is_replaced_by_one_of_the_same_number() {
    for driver in drivers() {
        let mut bench = Bench::new(&driver, Format::Q4_0, 300, 64, &[]);
        bench.check(0, 0, 0, 300);
        // The same file without its first row.
        bench.weights.drain(..36);
        bench.rows = 299;
        bench.first = 0;
        let load = Load {
            matrix: 7,
            format: 2,
            cols: 64,
            row_bytes: 36,
            offset: 52 + 36,
            first: 0,
            rows: 299,
            interleaved: false,
        };
        bench.worker.load(load).expect("rows");
        bench.check(0, 0, 0, 299);
    }
}

#[test]
fn the_pipeline_cache_is_only_an_optimisation() {
    for driver in drivers() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("cache");
        let compile = |cache: &Path| {
            let layout = Layout { cols: 32, activations: Format::Q4_0.activations(), rows: 64, slots: 2 };
            let data = Data::new(layout, &[0; 18 * 64]);
            let mut worker = Worker::start(&[], Some(&data));
            let cache = Some(cache.display().to_string());
            worker.open(Open { cache, ..driver.open() }).expect("a device");
            let load = Load {
                matrix: 0,
                format: 2,
                cols: 32,
                row_bytes: 18,
                offset: 0,
                first: 0,
                rows: 64,
                interleaved: false,
            };
            worker.load(load).expect("rows");
            worker.run(Job { matrix: 0, slot: 0, first: 0, rows: 64 }).expect("results");
        };
        compile(&cache);
        let files = files_in(&cache);
        assert_eq!(files.len(), 1, "{}: {files:?}", driver.name);
        for rubbish in [&[][..], &[0x5a; 5000][..], b"TWBPIPE1"] {
            fs::write(&files[0], rubbish).expect("space");
            compile(&cache);
            assert!(fs::read(&files[0]).expect("the file").len() > 16, "it is written anew");
        }
        compile(Path::new("/proc/nowhere"));
        compile(&files[0].join("below a file"));
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let Some(driver) = drivers().into_iter().next() else { return };
    let good = Load {
        matrix: 0,
        format: 2,
        cols: 64,
        row_bytes: 36,
        offset: 0,
        first: 0,
        rows: 64,
        interleaved: false,
    };
    let layout = Layout { cols: 64, activations: Format::Q4_0.activations(), rows: 64, slots: 2 };
    let data = Data::new(layout, &[0; 36 * 64]);
    let start = || {
        let mut worker = Worker::start(&[], Some(&data));
        worker.open(driver.open()).expect("a device");
        worker
    };
    for (load, code) in [
        (Load { format: 9999, ..good }, FaultCode::Format),
        (Load { row_bytes: 35, ..good }, FaultCode::Input),
        (Load { format: 12, ..good }, FaultCode::Input),
        // Blocks of one element cannot lie side by side.
        (Load { format: 1, cols: 18, interleaved: true, ..good }, FaultCode::Input),
        (Load { offset: 1, ..good }, FaultCode::Input),
        (Load { offset: u64::MAX, ..good }, FaultCode::Input),
        (Load { first: 1, ..good }, FaultCode::Input),
        (Load { first: u32::MAX - 63, ..good }, FaultCode::Input),
    ] {
        let fault = start().load(load).expect_err("refused");
        assert_eq!(fault.code, code, "{load:?}: {}", fault.text);
    }
    let job = Job { matrix: 0, slot: 0, first: 0, rows: 64 };
    for job in [
        Job { matrix: 1, ..job },
        Job { first: 64, ..job },
        Job { first: 1, rows: 1, ..job },
        Job { first: !63, ..job },
    ] {
        let mut worker = start();
        worker.load(good).expect("rows");
        let fault = worker.run(job).expect_err("refused");
        assert_eq!(fault.code, FaultCode::Input, "{job:?}: {}", fault.text);
    }
}

#[test]
fn a_cpu_in_disguise_is_used_only_when_named() {
    for driver in drivers() {
        let open = |device: Option<&str>, software| {
            let device = device.map(str::to_owned);
            Worker::start(&[], None).open(Open { device, software, ..driver.open() })
        };
        let device = open(None, true).expect("allowed");
        let fault = open(None, false).expect_err("a CPU");
        assert_eq!(fault.code, FaultCode::NoFitDevice);
        assert!(fault.text.contains(&device.name), "{}", fault.text);
        let uuid: String = device.uuid.iter().map(|b| format!("{b:02x}")).collect();
        let part = device.name[1..5].to_uppercase();
        for named in [&*uuid, &*part, "0"] {
            assert_eq!(open(Some(named), false).expect("named"), device);
        }
        assert_eq!(open(Some("GeForce"), true).map_err(|f| f.code), Err(FaultCode::NoFitDevice));
        assert!(device.unfit.is_some() && device.memory > 0 && !device.limits.is_empty(), "{device:?}");
    }
}

/// The loader stumbles over one bad manifest; the good driver beside it must be found all the same.
#[test]
fn a_broken_manifest_does_not_hide_a_good_driver() {
    let Some(driver) = lavapipe() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("space");
        path.display().to_string()
    };
    let copy = file("copy.json", &fs::read_to_string(&driver.manifest).expect("a manifest"));
    let bad = [
        file("broken.json", "{ \"ICD\": {"),
        file("empty.json", ""),
        file(
            "missing.json",
            r#"{"file_format_version":"1.0.0","ICD":{"library_path":"/none.so","api_version":"1.0.0"}}"#,
        ),
        file(
            "nodriver.json",
            r#"{"file_format_version":"1.0.0","ICD":{"library_path":"libc.so.6","api_version":"1.0.0"}}"#,
        ),
        folder.path().join("absent.json").display().to_string(),
    ];
    for way in [Driver::Loader, Driver::Direct] {
        let open = Open { driver: way.clone(), software: true, ..Open::default() };
        for bad in &bad {
            for list in [format!("{bad}:{}", driver.manifest), format!("{}:{bad}", driver.manifest)] {
                let env = [("VK_DRIVER_FILES", &*list)];
                let device = Worker::start(&env, None).open(open.clone()).expect("lavapipe");
                assert!(device.name.contains("llvmpipe"), "{device:?}");
                let report = Worker::start(&env, None).probe(open.clone());
                assert_eq!(report.manifests.len(), 2);
                let sound =
                    |path: &str| report.manifests.iter().any(|m| m.path == path && m.trouble.is_none());
                assert!(sound(&driver.manifest), "{report:?}");
                assert!(!sound(bad) || bad.contains("nodriver"), "{report:?}");
            }
            let fault =
                Worker::start(&[("VK_DRIVER_FILES", bad)], None).open(open.clone()).expect_err("none");
            assert!(fault.text.contains(&**bad) || fault.text.contains("no "), "{}", fault.text);
        }
        // The same driver twice is one device.
        let twice = format!("{}:{copy}", driver.manifest);
        let report = Worker::start(&[("VK_DRIVER_FILES", &twice)], None).probe(open.clone());
        assert_eq!(report.devices.len(), 1, "{report:?}");
    }
    let mut worker = Worker::start(&[("VK_DRIVER_FILES", "/nonexistent.json")], None);
    let report = worker.probe(Open { driver: Driver::Direct, ..Open::default() });
    assert!(report.devices.is_empty() && report.manifests[0].trouble.is_some(), "{report:?}");
    // Switched off by the loader's own variable: there is nothing, and nothing is broken.
    let env = [("VK_LOADER_DRIVERS_DISABLE", "*"), ("VK_DRIVER_FILES", &*driver.manifest)];
    let fault = Worker::start(&env, None).open(by_loader()).expect_err("none");
    assert_eq!(fault.code, FaultCode::NoDevice, "{}", fault.text);
}

fn by_loader() -> Open {
    Open { software: true, ..Open::default() }
}

#[test]
fn without_a_loader_drivers_are_reached_directly() {
    let Some(driver) = lavapipe() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let loader = folder.path().join("libvulkan.so.1");
    let other = fs::read("/proc/self/maps").map(|maps| String::from_utf8_lossy(&maps).into_owned());
    let other = other.expect("maps");
    let libc = other.lines().filter_map(|l| l.split_whitespace().last()).find(|l| l.contains("libc.so"));
    let libc = fs::read(libc.expect("libc is mapped")).expect("a library");
    // Empty, no library at all, and a library that is no loader.
    for bytes in [&[][..], b"#!/bin/sh\n", &libc] {
        fs::write(&loader, bytes).expect("space");
        let path = folder.path().display().to_string();
        let env = [("LD_LIBRARY_PATH", &*path), ("VK_DRIVER_FILES", &*driver.manifest)];
        let device = Worker::start(&env, None).open(by_loader()).expect("lavapipe");
        assert_eq!(device.manifest.as_deref(), Some(&*driver.manifest));
        let report = Worker::start(&env, None).probe(by_loader());
        assert!(matches!(report.loader, Loader::Fails(_)), "{report:?}");
    }
}

#[test]
fn the_report_names_what_there_is() {
    let Some(driver) = lavapipe() else { return };
    let env = [("VK_DRIVER_FILES", &*driver.manifest)];
    let by_loader = Worker::start(&env, None).probe(by_loader());
    assert!(matches!(&by_loader.loader, Loader::Works(what) if what.contains("libvulkan")), "{by_loader:?}");
    let direct = Worker::start(&[], None).probe(driver.open());
    assert_eq!(direct.loader, Loader::NotTried);
    assert_eq!(direct.devices.len(), 1);
    // However it is reached, it is the same device.
    let mut same = by_loader.devices[0].clone();
    assert_eq!(same.manifest, None);
    same.manifest = direct.devices[0].manifest.clone();
    assert_eq!(same, direct.devices[0]);
    assert!(direct.troubles.is_empty(), "{direct:?}");
}
