//! Requests that take long to compute, apart from the threads that serve connections.
//!
//! Decoding, completing, judging and patching a small object takes microseconds and stays where it is. Large bodies and
//! long lists can take a second: they are worked on a few at a time, each on a thread that has handed its
//! connections to another.

use std::{future::Future, thread::available_parallelism};

use mainstay_api::protobuf;
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
};

/// Bodies of this many bytes are large. Decoding and judging one of this size takes about a millisecond, unless
/// it is full of [`MANY_ITEMS`].
const LARGE_BODY: usize = 128 * 1024;
/// A list item can be written in two or three bytes, and judging it takes microseconds, whatever its size.
const MANY_ITEMS: usize = 2_000;
/// Bodies of less than this cannot have many, and are not counted through.
const SMALL_BODY: usize = 4 * 1024;
/// Lists of this many objects that must be decoded are long.
pub const LONG_LIST: usize = 500;

/// Whether a body may take long to work on, by a quick look at its bytes.
pub fn is_large(body: &[u8]) -> bool {
    // Items end with a comma in JSON, and with a comma or a line in YAML. In protobuf nothing tells.
    let may_end_item = |byte: &&u8| matches!(byte, b',' | b'\n');
    body.len() >= LARGE_BODY
        || body.len() >= SMALL_BODY
            && (body.starts_with(protobuf::MAGIC) || body.iter().filter(may_end_item).count() >= MANY_ITEMS)
}

pub struct LargeWork {
    turns: Semaphore,
}

impl Default for LargeWork {
    /// At most half the processors, so that there are always some for small requests.
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self { turns: Semaphore::new((processors / 2).max(1)) }
    }
}

impl LargeWork {
    /// Runs `work`, if it is large when it is its turn, on this thread, while others go on elsewhere.
    pub async fn run<F: Future>(&self, is_large: bool, work: F) -> F::Output {
        if !is_large || Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return work.await;
        }
        let _turn = self.turns.acquire().await;
        tokio::task::block_in_place(|| Handle::current().block_on(work))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[test]
    fn a_body_is_large_by_its_bytes_or_by_its_items() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(",")).into_bytes();
        assert!(is_large(&[b'x'; LARGE_BODY]));
        assert!(!is_large(&[b'x'; LARGE_BODY - 1]));
        assert!(is_large(&list("{}", 19_000)) && is_large(&list("null", 2_001)));
        assert!(is_large("- \n".repeat(2_000).as_bytes()));
        assert!(is_large(&[b"k8s\0".as_slice(), &[0; SMALL_BODY]].concat()));
        assert!(!is_large(&list(r#"{"name":"a","value":"b"}"#, 500)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn large_work_leaves_the_only_worker_to_others_and_takes_turns() {
        let large = Arc::new(LargeWork { turns: Semaphore::new(1) });
        let at_work = Arc::new(AtomicUsize::new(0));
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(parking_lot::Mutex::new(released));
        let all: Vec<_> = (0..3)
            .map(|_| {
                let (large, at_work, released) = (large.clone(), at_work.clone(), released.clone());
                tokio::spawn(async move {
                    let busy = async {
                        assert_eq!(at_work.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                        released.lock().recv().expect("a release");
                        at_work.fetch_sub(1, Ordering::SeqCst);
                    };
                    large.run(true, busy).await;
                })
            })
            .collect();
        while at_work.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        tokio::spawn(async {}).await.expect("others are served meanwhile");
        (0..3).for_each(|_| release.send(()).expect("somebody waits"));
        for one in all {
            one.await.expect("it ends");
        }
    }
}
