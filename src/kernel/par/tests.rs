use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;

fn team(n: usize) -> Team {
    Team::new(n).expect("a small team")
}

#[test]
fn parts_cover_everything_once() {
    for (n, unit, size) in [(10, 1, 3), (1, 8, 4), (0, 8, 2), (1003, 8, 2), (64, 64, 5), (7, 3, 2)] {
        let mut next = 0;
        for i in 0..size {
            let r = part(n, unit, i, size);
            assert_eq!(r.start, next);
            assert!(r.start.is_multiple_of(unit) || r.start == n);
            next = r.end;
        }
        assert_eq!(next, n);
    }
}

#[test]
fn members_see_each_others_work_after_a_barrier() {
    for size in [1, 2, 3, 8] {
        let (mut a, mut b) = (vec![0u64; 37 * 5], vec![0u64; 37 * 5]);
        let (sa, sb) = (Shared::new(&mut a, 37), Shared::new(&mut b, 37));
        team(size).run(|m| {
            for round in 0..100 {
                let mut cols = sa.cols(m, 4);
                for r in 0..cols.height() {
                    let start = cols.range().start;
                    for (i, x) in cols.row(r).iter_mut().enumerate() {
                        *x = (round * 1000 + r * 37 + start + i) as u64;
                    }
                }
                drop(cols);
                m.sync();
                let all = sa.read(m);
                for (r, row) in sb.rows(m).iter_mut() {
                    for (i, x) in row.iter_mut().enumerate() {
                        *x = all[all.len() - 1 - (r * 37 + i)];
                    }
                }
                m.sync();
            }
        });
        for (i, x) in b.iter().enumerate() {
            assert_eq!(*x, (99_000 + 37 * 5 - 1 - i) as u64);
        }
    }
}

#[test]
fn bands_are_dealt_once_each() {
    for (height, rows) in [(7, 4), (8, 4), (1, 8), (5, 1)] {
        let mut a = vec![0u32; 12 * height];
        let shared = Shared::new(&mut a, 12);
        team(3).run(|m| {
            // Twice: a new round begins at the first tile again.
            for _ in 0..2 {
                let mut bands = shared.bands(m, rows, 4);
                while let Some((mut cols, _)) = bands.advance() {
                    let (first, start) = (cols.first_row(), cols.range().start);
                    assert!(start.is_multiple_of(4) && cols.range().len() == 4);
                    assert_eq!(cols.height(), rows.min(height - first));
                    for r in 0..cols.height() {
                        for (i, x) in cols.row(r).iter_mut().enumerate() {
                            *x += ((first + r) * 12 + start + i) as u32 + 1;
                        }
                    }
                }
                m.sync();
            }
        });
        assert!(a.iter().enumerate().all(|(i, x)| *x == 2 * (i as u32 + 1)), "{height} rows");
    }
}

#[test]
fn tiles_are_dealt_once_each() {
    for (width, unit, members) in [(100, 16, 3), (16, 16, 2), (7, 16, 4), (1000, 1, 2)] {
        let mut a = vec![0u32; 3 * width];
        let shared = Shared::new(&mut a, width);
        team(members).run(|m| {
            for _ in 0..2 {
                let mut tiles = shared.tiles(m, unit);
                while let Some((mut cols, then)) = tiles.advance() {
                    let range = cols.range();
                    assert!(range.start.is_multiple_of(unit) && (range.len() == unit || range.end == width));
                    assert!(then.is_empty() || then.start == range.start + unit);
                    assert!(then.end <= width);
                    for r in 0..3 {
                        for (i, x) in cols.row(r).iter_mut().enumerate() {
                            *x += (r * width + range.start + i) as u32 + 1;
                        }
                    }
                }
                assert!(tiles.advance().is_none());
                m.sync();
            }
        });
        assert!(a.iter().enumerate().all(|(i, x)| *x == 2 * (i as u32 + 1)), "{width} columns");
    }
}

#[test]
fn a_member_that_is_held_up_leaves_its_tiles_to_others() {
    let mut a = vec![usize::MAX; 64];
    let shared = Shared::new(&mut a, 64);
    let others_done = AtomicUsize::new(0);
    team(2).run(|m| {
        let mut tiles = shared.tiles(m, 1);
        while let Some((mut cols, _)) = tiles.advance() {
            cols.row(0)[0] = m.index();
            if m.index() == 0 {
                // Does not end if some of the other 63 wait for this member.
                while others_done.load(Ordering::Acquire) < 63 {
                    std::hint::spin_loop();
                }
            } else if others_done.fetch_add(1, Ordering::AcqRel) == 62 {
                break;
            }
        }
    });
    assert!(a.iter().filter(|&&by| by == 0).count() <= 1);
    assert!(a.iter().all(|&by| by < 2));
}

#[test]
fn a_member_that_nobody_waits_for_has_its_own_columns() {
    let mut a = vec![usize::MAX; 2 * 100];
    let shared = Shared::new(&mut a, 100);
    let taken = AtomicUsize::new(0);
    team(2).run(|m| {
        let mut tiles = shared.tiles(m, 10);
        while let Some((mut cols, _)) = tiles.advance() {
            (0..2).for_each(|r| cols.row(r).fill(m.index()));
            // Both take a tile, then both the next.
            let seen = taken.fetch_add(1, Ordering::AcqRel);
            while taken.load(Ordering::Acquire) < (seen / 2 + 1) * 2 {
                std::hint::spin_loop();
            }
        }
    });
    for (i, by) in a.iter().enumerate() {
        assert_eq!(*by, i % 100 / 50);
    }
}

#[test]
fn members_may_be_at_different_buffers() {
    let (mut a, mut b) = (vec![0; 60], vec![0; 90]);
    let (a_shared, b_shared) = (Shared::new(&mut a, 60), Shared::new(&mut b, 45));
    team(3).run(|m| {
        for _ in 0..50 {
            let mut tiles = a_shared.tiles(m, 1);
            while let Some((mut cols, _)) = tiles.advance() {
                cols.row(0)[0] += 1;
            }
            let mut bands = b_shared.bands(m, 1, 5);
            while let Some((mut cols, _)) = bands.advance() {
                cols.row(0).iter_mut().for_each(|x| *x += 1);
            }
            m.sync();
        }
    });
    assert!(a.iter().chain(&b).all(|&x| x == 50));
}

#[test]
fn strips_are_whole_rows_in_units() {
    let mut a = vec![0u32; 8 * 5];
    let shared = Shared::new(&mut a, 5);
    team(3).run(|m| {
        let mut strip = shared.strip(m, 2);
        let first = strip.first_row();
        assert!(first.is_multiple_of(2) && strip.height().is_multiple_of(2) && strip.range() == (0..5));
        for r in 0..strip.height() {
            for (i, x) in strip.row(r).iter_mut().enumerate() {
                *x += ((first + r) * 5 + i) as u32 + 1;
            }
        }
    });
    assert!(a.iter().enumerate().all(|(i, x)| *x == i as u32 + 1));
}

#[test]
fn wrong_claims_are_refused() {
    let breach = |f: &(dyn Fn(&mut Member<'_>, &Shared<'_, u8>) + Sync)| {
        let mut data = vec![0u8; 64];
        let shared = Shared::new(&mut data, 8);
        catch_unwind(AssertUnwindSafe(|| team(2).run(|m| f(m, &shared)))).is_err()
    };
    assert!(breach(&|m, s| {
        let _w = s.rows(m);
        s.read(m);
    }));
    assert!(breach(&|m, s| {
        s.read(m);
        s.cols(m, 8);
    }));
    assert!(breach(&|m, s| {
        s.cols(m, 8);
        s.cols(m, 4);
    }));
    assert!(breach(&|m, s| {
        s.tiles(m, 8);
        s.tiles(m, 4);
    }));
    assert!(breach(&|m, s| {
        s.tiles(m, 4).advance();
        s.cols(m, 4);
    }));
    assert!(breach(&|m, s| {
        s.bands(m, 2, 4);
        s.bands(m, 4, 4);
    }));
    // Not in the same order on all members.
    let (mut a, mut b) = (vec![0u8; 8], vec![0u8; 8]);
    let (a, b) = (Shared::new(&mut a, 8), Shared::new(&mut b, 8));
    assert!(breach(&|m, _| {
        for buffer in if m.index() == 0 { [&a, &b] } else { [&b, &a] } {
            buffer.tiles(m, 1).advance();
        }
    }));
    assert!(breach(&|m, s| {
        let _one = s.rows(m);
        let _two = s.rows(m);
    }));
    assert!(!breach(&|m, s| {
        drop(s.rows(m));
        drop(s.rows(m));
        m.sync();
        s.read(m);
    }));
    let mut data = vec![0u8; 8];
    let shared = Shared::new(&mut data, 8);
    let t = team(1);
    t.run(|m| drop(shared.rows(m)));
    assert!(catch_unwind(AssertUnwindSafe(|| t.run(|m| drop(shared.rows(m))))).is_err());
}

#[test]
fn a_panic_in_one_member_ends_the_others() {
    let t = team(4);
    let result = catch_unwind(AssertUnwindSafe(|| {
        t.run(|m| {
            assert!(m.index() != 2, "on purpose");
            m.sync();
            m.sync();
        });
    }));
    assert!(result.is_err());
}

#[test]
fn sizes_out_of_range_are_errors() {
    assert!(matches!(Team::new(0), Err(TeamError::Size { asked: 0 })));
    assert!(Team::new(MAX_THREADS + 1).is_err());
}

#[test]
fn many_more_threads_than_cores_still_finish() {
    let mut sums = vec![0u64; 64];
    let shared = Shared::new(&mut sums, 1);
    team(64).run(|m| {
        for _ in 0..200 {
            shared.rows(m).data()[0] += 1;
            m.sync();
        }
    });
    assert!(sums.iter().all(|s| *s == 200));
}
