//! The sampler against exact probabilities: Pearson's chi-square over many draws with fixed seeds.

use twinband::sample::{Params, Sampler};

const DRAWS: u32 = 100_000;

/// Logits of a small vocabulary with two equal ones, a far one and a ruled-out one.
const LOGITS: [f32; 12] = [0.5, 2.0, -1.0, 1.25, 2.0, 0.0, 0.75, -2.5, 1.5, f32::NEG_INFINITY, -0.25, -12.0];

/// Upper 0.1 % point of the chi-square law with `freedom` degrees (Wilson and Hilferty's cube approximation, good to
/// a percent from 3 degrees on; at 1 and 2 it is a little above the true value).
fn critical(freedom: usize) -> f64 {
    let v = freedom as f64;
    let z = 3.0902;
    let a = 2.0 / (9.0 * v);
    v * (1.0 - a + z * a.sqrt()).powi(3)
}

/// Chi-square statistic and degrees of freedom of the counts against the probabilities. Tokens expected fewer than five
/// times are counted together, as the test's theory asks.
fn chi_square(counts: &[u32], probabilities: &[f64]) -> (f64, usize) {
    let draws: u32 = counts.iter().sum();
    let (mut statistic, mut cells) = (0.0, 0);
    let (mut rare_count, mut rare_expected) = (0.0, 0.0);
    for (&count, p) in counts.iter().zip(probabilities) {
        let expected = p * f64::from(draws);
        if expected >= 5.0 {
            statistic += (f64::from(count) - expected).powi(2) / expected;
            cells += 1;
        } else {
            rare_count += f64::from(count);
            rare_expected += expected;
        }
    }
    if rare_expected >= 1.0 {
        statistic += (rare_count - rare_expected).powi(2) / rare_expected;
        cells += 1;
    } else {
        assert!(rare_count <= 5.0, "{rare_count} draws of tokens expected {rare_expected} times");
    }
    (statistic, cells - 1)
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// The probabilities which the parameters ask for, straight from their definition.
fn exact(params: &Params, logits: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
    let model = softmax(&logits);
    let mut order: Vec<usize> = (0..logits.len()).filter(|&i| model[i] > 0.0).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let kept: f64 = order.iter().map(|&i| model[i]).sum();
    let mut sum = 0.0;
    let run = order.iter().position(|&i| {
        sum += model[i] / kept;
        sum >= f64::from(params.top_p)
    });
    order.truncate(run.map_or(order.len(), |last| last + 1));
    let best = model[order[0]];
    order.retain(|&i| model[i] >= f64::from(params.min_p) * best);
    let tempered: Vec<f64> =
        (0..logits.len())
            .map(|i| {
                if order.contains(&i) { logits[i] / f64::from(params.temperature) } else { f64::NEG_INFINITY }
            })
            .collect();
    softmax(&tempered)
}

fn draw(params: &Params, logits: &[f32], draws: u32) -> Vec<u32> {
    let mut sampler = Sampler::new(params.clone()).expect("good parameters");
    let mut counts = vec![0; logits.len()];
    let mut scratch = logits.to_vec();
    for _ in 0..draws {
        scratch.copy_from_slice(logits);
        counts[sampler.sample(&mut scratch).expect("a token") as usize] += 1;
    }
    counts
}

#[track_caller]
fn agrees(params: &Params, logits: &[f32], probabilities: &[f64], draws: u32) {
    let counts = draw(params, logits, draws);
    for (id, (&count, &p)) in counts.iter().zip(probabilities).enumerate() {
        assert!(p > 0.0 || count == 0, "token {id} has probability 0 and came {count} times: {params:?}");
    }
    let (statistic, freedom) = chi_square(&counts, probabilities);
    assert!(
        freedom == 0 || statistic < critical(freedom),
        "chi-square {statistic:.1} with {freedom} degrees of freedom: {params:?}\n{counts:?}\n{probabilities:?}"
    );
}

#[test]
fn draws_follow_the_probabilities() {
    let base = Params { temperature: 1.0, ..Params::default() };
    let cases = [
        Params { seed: 1, ..base.clone() },
        Params { seed: 2, temperature: 0.5, ..base.clone() },
        Params { seed: 3, temperature: 3.0, ..base.clone() },
        Params { seed: 4, top_k: 5, ..base.clone() },
        Params { seed: 5, top_k: 2, temperature: 2.0, ..base.clone() },
        Params { seed: 6, top_p: 0.8, ..base.clone() },
        Params { seed: 7, top_p: 0.95, temperature: 0.7, ..base.clone() },
        Params { seed: 8, min_p: 0.2, ..base.clone() },
        Params { seed: 9, min_p: 0.05, top_k: 7, top_p: 0.9, temperature: 1.5, ..base.clone() },
        Params { seed: 10, top_k: 1, ..base },
    ];
    for params in cases {
        agrees(&params, &LOGITS, &exact(&params, &LOGITS), DRAWS);
    }
}

#[test]
fn bias_and_penalties_shift_the_probabilities() {
    let params = Params {
        temperature: 1.0,
        seed: 21,
        logit_bias: vec![(2, 2.0), (4, f32::NEG_INFINITY)],
        repeat_penalty: 1.5,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        ..Params::default()
    };
    let mut wanted = LOGITS;
    wanted[2] += 2.0;
    wanted[4] = f32::NEG_INFINITY;
    wanted[1] = wanted[1] / 1.5 - 0.25 * 2.0 - 0.5;
    wanted[7] = wanted[7] * 1.5 - 0.25 - 0.5;
    let mut sampler = Sampler::new(params.clone()).expect("good parameters");
    for id in [1, 7, 1] {
        sampler.accept(id);
    }
    let mut counts = vec![0; LOGITS.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(&mut LOGITS.clone()).expect("a token") as usize] += 1;
    }
    let (statistic, freedom) = chi_square(&counts, &exact(&params, &wanted));
    assert!(statistic < critical(freedom), "chi-square {statistic:.1}, {freedom} degrees: {counts:?}");
}

#[test]
fn a_large_vocabulary_is_drawn_as_truly() {
    let logits: Vec<f32> = (0..2000).map(|i| (i * 7919 % 2003) as f32 / 250.0).collect();
    for params in [
        Params { temperature: 1.0, seed: 31, ..Params::default() },
        Params { temperature: 0.9, seed: 32, top_p: 0.97, ..Params::default() },
    ] {
        agrees(&params, &logits, &exact(&params, &logits), DRAWS / 5);
    }
}

/// The test above would notice: the same counts fail against slightly different probabilities.
#[test]
fn the_statistic_tells_laws_apart() {
    let params = Params { temperature: 1.0, seed: 1, ..Params::default() };
    let other = Params { temperature: 0.97, ..params.clone() };
    let (statistic, freedom) = chi_square(&draw(&params, &LOGITS, DRAWS), &exact(&other, &LOGITS));
    assert!(statistic > critical(freedom), "{statistic} with {freedom}");
}

/// Consecutive draws of one seed are independent: pairs are distributed as the product.
#[test]
fn consecutive_draws_do_not_depend_on_each_other() {
    let logits = [0.0, 0.5, -0.5];
    for top_k in [0, 2] {
        let params = Params { temperature: 1.0, seed: 77, top_k, ..Params::default() };
        let single = exact(&params, &logits);
        let mut sampler = Sampler::new(params).expect("good parameters");
        let mut counts = [0; 9];
        let mut next = || sampler.sample(&mut logits.clone()).expect("a token") as usize;
        for _ in 0..DRAWS {
            let first = next();
            counts[first * 3 + next()] += 1;
        }
        let pairs: Vec<f64> = single.iter().flat_map(|a| single.iter().map(move |b| a * b)).collect();
        let (statistic, freedom) = chi_square(&counts, &pairs);
        assert!(statistic < critical(freedom), "{statistic} with {freedom}: {counts:?}");
    }
}
