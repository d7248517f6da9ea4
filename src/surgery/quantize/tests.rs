use super::*;
use crate::kernel::check::{data, floats};
use crate::kernel::format;

fn golden(name: &str) -> Vec<u8> {
    data(&format!("quantize/{name}"))
}

fn input() -> Vec<f32> {
    floats(&golden("input.f32"))
}

fn encoded(ty: GgmlType, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; ty.geometry().and_then(|g| g.row_bytes(x.len())).expect("whole blocks")];
    quantize(ty, x, None, &mut bytes).expect("ordinary numbers");
    bytes
}

fn decoded(ty: GgmlType, x: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    (format::of(ty).expect("a format").decode)(&encoded(ty, x), &mut out);
    out
}

/// Types that choose points of grids, of which none is near 0.
const GRIDS: [GgmlType; 7] = [
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
];

/// Types whose encoders search, of those that ggml has too.
fn searched_too() -> impl Iterator<Item = GgmlType> {
    [
        GgmlType::Q2_K,
        GgmlType::Q3_K,
        GgmlType::Q4_K,
        GgmlType::Q5_K,
        GgmlType::Q6_K,
        GgmlType::IQ4_NL,
        GgmlType::IQ4_XS,
    ]
    .into_iter()
    .chain(GRIDS)
}

fn of_ggml(ty: GgmlType) -> Vec<u8> {
    golden(&format!("{}.bytes", ty.to_string().to_lowercase()))
}

#[test]
fn bytes_are_those_of_ggml() {
    let x = input();
    for ty in types().filter(|ty| ty.0 != 0 && ty.0 < 128 && !searched_too().any(|known| known == *ty)) {
        let (got, want) = (encoded(ty, &x), of_ggml(ty));
        assert_eq!(got.len(), want.len(), "{ty}");
        let wrong = got.iter().zip(&want).position(|(g, w)| g != w);
        assert_eq!(wrong, None, "{ty}, of {} bytes", want.len());
    }
}

/// The errors of blocks of 256, each against its block's power: plain ones, and weighted with the square of the
/// element, as ggml does for most of these types.
fn errors(x: &[f32], y: &[f32]) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for (x, y) in x.chunks(256).zip(y.chunks(256)) {
        let power = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().max(1e-30);
        for (&x, &y) in x.iter().zip(y) {
            let (x, square) = (f64::from(x), (f64::from(x) - f64::from(y)).powi(2));
            sums[0] += square / power;
            sums[1] += x * x * 256.0 / power * square / power;
        }
    }
    sums
}

/// The row of numbers so small that ggml makes them all 0.
const TINY: usize = 8;

#[test]
fn errors_are_below_ggmls() {
    let x = input();
    for ty in searched_too() {
        let decode = format::of(ty).expect("a format").decode;
        let mut theirs = vec![0.0; x.len()];
        decode(&of_ggml(ty), &mut theirs);
        let ours = decoded(ty, &x);
        let mut total = [[0.0; 2]; 2];
        for (row, ((x, ours), theirs)) in
            x.chunks(1024).zip(ours.chunks(1024)).zip(theirs.chunks(1024)).enumerate()
        {
            let (ours, theirs) = (errors(x, ours), errors(x, theirs));
            if row == TINY {
                assert!(ours[1] < theirs[1], "{ty}: {ours:?} of {theirs:?}");
                continue;
            }
            for k in 0..2 {
                // For the sake of one huge number a grid loses all others; how much of it is given up for them is a choice.
                let more = if GRIDS.contains(&ty) { 0.04 } else { 1e-3 };
                assert!(ours[k] <= 1.2 * theirs[k] + more, "{ty}, row {row}: {ours:?} of {theirs:?}");
                total[0][k] += ours[k];
                total[1][k] += theirs[k];
            }
        }
        for k in 0..2 {
            assert!(total[0][k] < total[1][k], "{ty}: {:?} of {:?}", total[0], total[1]);
        }
    }
}

#[test]
fn importance_moves_the_error_to_where_it_counts_less() {
    let x = input();
    let importance: Vec<f32> = (0..1024).map(|i| if i % 5 == 0 { 20.0 } else { 0.5 }).collect();
    let weighted = |y: &[f32]| -> f64 {
        let rows = x.chunks(1024).zip(y.chunks(1024)).enumerate().filter(|&(row, _)| row != TINY);
        rows.map(|(_, (x, y))| {
            let power = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().max(1e-30);
            let squares = x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2));
            squares.zip(&importance).map(|(s, &i)| s * f64::from(i)).sum::<f64>() / power
        })
        .sum()
    };
    for ty in types().filter(|&ty| weighs_errors(ty)) {
        let format = format::of(ty).expect("a format");
        let mut bytes = vec![0; ty.geometry().and_then(|g| g.row_bytes(x.len())).expect("whole blocks")];
        let rows = bytes.len() / 16;
        for (x, out) in x.chunks(1024).zip(bytes.chunks_mut(rows)) {
            quantize(ty, x, Some(&importance), out).expect("ordinary numbers");
        }
        let mut y = vec![0.0; x.len()];
        (format.decode)(&bytes, &mut y);
        let (with, without) = (weighted(&y), weighted(&decoded(ty, &x)));
        assert!(with < 0.99 * without, "{ty}: {with} of {without}");
    }
}

/// Elements a scale has, the smallest code and the largest.
const SEARCHED: [(GgmlType, usize, f64, f64); 3] = [
    (GgmlType::Q4_0S, 256, -8.0, 7.0),
    (GgmlType::Q4_0S_PSY, 128, -8.0, 7.0),
    (GgmlType::Q4_VVC, 256, -3.0, 4.0),
];

/// What errors of a block with one scale count: as much as their elements' squares, and twice the mean of these.
fn weights(x: &[f32]) -> Vec<f64> {
    let square = |x: &f32| f64::from(*x).powi(2);
    let even = 2.0 * x.iter().map(square).sum::<f64>() / x.len() as f64;
    x.iter().map(|x| even + square(x)).collect()
}

fn error(x: &[f32], y: &[f32], w: &[f64]) -> f64 {
    x.iter().zip(y).zip(w).map(|((&x, &y), w)| w * (f64::from(x) - f64::from(y)).powi(2)).sum()
}

/// The least error that any f16 scale leaves.
fn least(x: &[f32], w: &[f64], low: f64, high: f64) -> f64 {
    let all = (0..0x7c00).flat_map(|bits| [bits, bits | 0x8000]).map(half::f16::from_bits);
    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    // Scales much below and above the largest element's leave more than those between.
    let near = all.filter(|d| {
        let range = f64::from(d.to_f32().abs()) * high.max(-low);
        *d == half::f16::ZERO || (0.1..4.0).contains(&(range / f64::from(largest)))
    });
    let of = |d: half::f16| {
        let d = f64::from(d.to_f32());
        let rest = |x: f64| if d == 0.0 { x } else { x - d * (x / d).round().clamp(low, high) };
        x.iter().zip(w).map(|(&x, w)| w * rest(f64::from(x)).powi(2)).sum::<f64>()
    };
    near.map(of).fold(f64::INFINITY, f64::min)
}

#[test]
fn searched_scales_are_as_good_as_the_best() {
    let x = input();
    for (ty, n, low, high) in SEARCHED {
        let y = decoded(ty, &x);
        let (mut sum, mut sum_least) = (0.0, 0.0);
        // Every row's first and last blocks: each row is of another kind.
        for (x, y) in x.chunks(1024).zip(y.chunks(1024)) {
            for at in [0, 1024 - n] {
                let (x, y) = (&x[at..at + n], &y[at..at + n]);
                let w = weights(x);
                let (got, least) = (error(x, y, &w), least(x, &w, low, high));
                let power = error(x, &[0.0; 256], &w).max(1e-60);
                assert!(got <= least * 1.02 + power * 1e-6, "{ty}: {got} of {least} at {at}");
                sum += got / power;
                sum_least += least / power;
            }
        }
        assert!(sum <= sum_least * 1.001, "{ty}: {sum} of {sum_least}");
    }
}

#[test]
fn numbers_that_have_no_place_are_named() {
    // Any f32 has a place among f32 numbers, and any magnitude one among MXFP4's powers of two.
    for ty in types().filter(|&ty| ty != GgmlType::F32 && ty != GgmlType::MXFP4) {
        let geometry = ty.geometry().expect("a known type");
        let mut x = vec![0.5f32; geometry.block * 3];
        let mut out = vec![0; geometry.bytes * 3];
        assert_eq!(quantize(ty, &x, None, &mut out), Ok(()));
        let (n, bytes) = (x.len(), out.len() - 1);
        assert_eq!(quantize(ty, &x, None, &mut out[1..]), Err(QuantizeError::Size { ty, n, bytes }));
        let at = geometry.block + geometry.block / 2;
        x[at] = f32::NEG_INFINITY;
        let want = Err(QuantizeError::NotFinite { ty, at, x: x[at] });
        assert_eq!(quantize(ty, &x, None, &mut out), want);
        x[at] = f32::MAX;
        let (at, n) = (geometry.block, geometry.block);
        let want = Err(QuantizeError::TooLarge { ty, at, n, x: f32::MAX });
        assert_eq!(quantize(ty, &x, None, &mut out), want);
    }
    let none = quantize(GgmlType(31), &[], None, &mut []).expect_err("withdrawn").to_string();
    assert!(none.contains("Q4_0_4_4") && none.contains("Q4_0, Q4_1") && none.contains("Q4_VVC"), "{none}");
    let none = quantize(GgmlType(15), &[], None, &mut []).expect_err("no encoder").to_string();
    assert!(none.contains("Q8_K"), "{none}");
}

/// Blocks at the edge of what a search has to go by.
#[test]
fn edge_blocks_keep_what_they_hold() {
    let block = |f: fn(usize) -> f32| (0..256).map(f).collect::<Vec<_>>();
    // What may be lost of the largest, and of types that choose points of grids.
    let blocks = [
        ("zeros", block(|_| 0.0), [0.0, 0.0]),
        ("minus zeros", block(|_| -0.0), [0.0, 0.0]),
        ("a constant", block(|_| 3.25), [0.01, 0.01]),
        ("a negative constant", block(|_| -3.25), [0.01, 0.01]),
        ("one outlier", block(|i| if i == 77 { 1000.0 } else { 0.0 }), [0.02, 0.2]),
        ("one negative outlier", block(|i| if i == 200 { -1000.0 } else { 0.0 }), [0.02, 0.2]),
        // Grids whose minuses come in pairs turn some of these.
        ("two levels", block(|i| if i % 3 == 0 { 0.5 } else { -0.5 }), [0.15, 2.1]),
        ("smallest numbers", block(|i| f32::from_bits(1 + i as u32 % 2)), [1.0, 1.0]),
        ("half of them zeros", block(|i| if i < 128 { 0.0 } else { (i as f32).sin() }), [0.35, 0.75]),
    ];
    for ty in searched_too() {
        for (name, x, parts) in &blocks {
            let part = parts[usize::from(GRIDS.contains(&ty))];
            let y = decoded(ty, x);
            let worst = x.iter().zip(&y).fold(0f32, |m, (x, y)| m.max((x - y).abs()));
            let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
            assert!(worst <= part * largest, "{ty}, {name}: {worst} of {largest}");
        }
    }
}

/// The smallest and the largest numbers there are must not upset any arithmetic.
#[test]
fn every_magnitude_is_encoded_or_refused() {
    for ty in types() {
        let geometry = ty.geometry().expect("a known type");
        let mut out = vec![0; geometry.bytes];
        for exponent in -149..128 {
            let size = 2f64.powi(exponent) as f32;
            let x: Vec<f32> = (0..geometry.block).map(|i| ((i + 50) as f32 / 97.0).sin() * size).collect();
            let done = quantize(ty, &x, None, &mut out);
            let mut y = vec![f32::NAN; geometry.block];
            (format::of(ty).expect("a format").decode)(&out, &mut y);
            match done {
                Ok(()) => {
                    assert!(y.iter().all(|y| y.is_finite() && y.abs() <= 1.6 * size + 4e-6), "{ty} {size}")
                }
                Err(QuantizeError::TooLarge { .. }) => assert!(size >= 65504.0, "{ty} {size}"),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Rows of real matrices, and how large the inputs of their columns are.
fn real(model: &str, source: GgmlType) -> (Vec<f32>, Vec<f32>) {
    let bytes = golden(&format!("real/{model}.{}", source.to_string().to_lowercase()));
    let blocks = bytes.len() / source.geometry().expect("a known type").bytes;
    let mut x = vec![0.0; blocks * source.geometry().expect("a known type").block];
    (format::of(source).expect("a format").decode)(&bytes, &mut x);
    (x, floats(&golden(&format!("real/{model}.importance.f32"))))
}

/// What a type leaves of such rows: plain and weighted errors without importance data, and those that matter with it.
fn left(ty: GgmlType, x: &[f32], importance: &[f32]) -> [f64; 3] {
    let geometry = ty.geometry().expect("a known type");
    let rows = |importance: Option<&[f32]>, columns: usize| {
        let mut bytes = vec![0; geometry.row_bytes(x.len()).expect("whole blocks")];
        let row = geometry.row_bytes(columns).expect("whole blocks");
        for (x, out) in x.chunks(columns).zip(bytes.chunks_mut(row)) {
            quantize(ty, x, importance, out).expect("ordinary numbers");
        }
        let mut y = vec![0.0; x.len()];
        (format::of(ty).expect("a format").decode)(&bytes, &mut y);
        y
    };
    let [plain, weighted] = errors(x, &rows(None, importance.len()));
    let y = rows(Some(importance), importance.len());
    let mut mattering = 0.0;
    for (b, (x, y)) in x.chunks(256).zip(y.chunks(256)).enumerate() {
        let power = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        let importance = &importance[b * 256 % importance.len()..];
        for ((&x, &y), &i) in x.iter().zip(y).zip(importance) {
            mattering += f64::from(i) * (f64::from(x) - f64::from(y)).powi(2) / power;
        }
    }
    [plain, weighted, mattering]
}

/// What is left of the rows of both models at most, of what ggml leaves: plain and weighted errors without importance data, and
/// those that matter with it. Most is won by searches of which every step counts, so a step that is lost shows.
const OF_GGMLS: [(&str, [f64; 3]); 22] = [
    ("Q4_0", [1.0, 1.0, 0.945]),
    ("Q4_1", [1.0, 1.0, 0.434]),
    ("Q5_0", [1.0, 1.0, 0.815]),
    ("Q5_1", [1.0, 1.0, 0.798]),
    ("Q8_0", [1.0, 1.0, 1.0]),
    ("Q2_K", [0.779, 0.968, 0.922]),
    ("Q3_K", [0.947, 0.922, 0.991]),
    ("Q4_K", [0.292, 0.369, 0.342]),
    ("Q5_K", [0.521, 0.503, 0.549]),
    ("Q6_K", [0.907, 0.995, 0.939]),
    ("IQ2_XXS", [0.98, 0.865, 0.895]),
    ("IQ2_XS", [0.95, 0.91, 0.871]),
    ("IQ3_XXS", [0.703, 0.983, 0.928]),
    ("IQ1_S", [0.965, 0.922, 0.863]),
    ("IQ4_NL", [0.762, 0.923, 0.818]),
    ("IQ3_S", [0.645, 0.888, 0.867]),
    ("IQ2_S", [0.85, 0.919, 0.899]),
    ("IQ4_XS", [0.769, 0.906, 0.817]),
    ("IQ1_M", [0.584, 0.93, 0.863]),
    ("TQ1_0", [1.0, 1.0, 1.0]),
    ("TQ2_0", [1.0, 1.0, 1.0]),
    ("MXFP4", [1.0, 1.0, 1.0]),
];

#[test]
fn errors_of_real_matrices_are_not_above_ggmls() {
    let models = [("smollm2", GgmlType::Q4_1), ("gemma3", GgmlType::Q4_K)];
    let models = models.map(|(name, source)| (name, source, real(name, source)));
    let text = String::from_utf8(golden("real/errors.txt")).expect("text");
    let theirs = |model: &str, ty: GgmlType| -> Vec<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{model} {ty} ")));
        line.expect("a line").split(' ').map(|n| n.parse().expect("a number")).collect()
    };
    let mut worse = Vec::new();
    for ty in types().filter(|ty| ty.0 < 128 && !["F32", "F16", "BF16"].contains(&ty.to_string().as_str())) {
        let mut total = [[0.0; 2]; 3];
        // What is of the type already is not converted.
        for (model, _, (x, importance)) in models.iter().filter(|(_, source, _)| *source != ty) {
            let (ours, theirs) = (left(ty, x, importance), theirs(model, ty));
            for k in 0..3 {
                total[k][0] += ours[k];
                total[k][1] += theirs[k];
            }
        }
        let most = OF_GGMLS.iter().find(|(name, _)| *name == ty.to_string()).expect("a line").1;
        // ggml's figures have five digits.
        if total.iter().zip(most).any(|([ours, theirs], most)| *ours > theirs * most * 1.0001) {
            worse.push(format!("{ty}: {:?}", total.map(|[ours, theirs]| ours / theirs)));
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
