//! An allocator that counts, for tests of what is allocated. A test program that uses it has
//! `#[global_allocator] static COUNTING: Counting = Counting;`
#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts on the way to the system's allocator.
pub struct Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
}
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// The bytes that this thread has asked for.
pub fn bytes_of_this_thread() -> usize {
    BYTES.get()
}

/// How often any thread has asked for memory.
pub fn calls() -> usize {
    CALLS.load(Ordering::SeqCst)
}

#[allow(
    unsafe_code,
    reason = "a global allocator is unsafe by its nature; this one only counts and passes on"
)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size());
        CALLS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}
