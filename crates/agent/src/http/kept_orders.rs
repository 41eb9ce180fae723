//! Orders of sorted lists, kept between two pages.
//!
//! A page by number goes on after a number. Other values change while a client reads: a job's memory, its place, its
//! state. So the daemon keeps the numbers of the jobs behind the first page, and the next pages read them from there.
//! No job comes twice, and none is lost that was there all the time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use divvy_api::sync::lock;
use divvy_core::JobId;

use crate::host::clock::Instant;

/// Orders of one user. So a user may page in eight windows; a ninth ends the oldest.
const MOST_OF_USER: usize = 8;

/// Numbers in all orders: 8 MiB.
const MOST_NUMBERS: usize = 1 << 20;

/// How long an order is kept after its last page. A reader takes minutes for a page at most; longer would keep orders
/// of closed windows.
const KEPT: Duration = Duration::from_secs(600);

/// The orders, the one that was used last at the end.
#[derive(Debug, Default)]
pub struct KeptOrders(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    orders: VecDeque<KeptOrder>,
}

#[derive(Debug)]
struct KeptOrder {
    number: u64,
    used: Instant,
    uid: u32,
    /// The query without its page.
    query: String,
    jobs: Arc<[JobId]>,
}

/// Where the next page of a list begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Number of the order.
    pub order: u64,
    /// Index of the job in it.
    pub at: usize,
}

impl Cursor {
    /// Reads what [`Cursor`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let (order, at) = text.split_once('-')?;
        Some(Self {
            order: order.parse().ok()?,
            at: at.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}-{}", self.order, self.at)
    }
}

impl KeptOrders {
    /// Keeps an order and returns its number. The order is forgotten after ten minutes, or when its user or all users
    /// together have too many.
    pub fn keep(&self, uid: u32, query: String, jobs: Arc<[JobId]>) -> u64 {
        let mut kept = lock(&self.0);
        kept.last += 1;
        let number = kept.last;
        kept.orders.push_back(KeptOrder {
            number,
            used: Instant::now(),
            uid,
            query,
            jobs,
        });
        kept.forget();
        number
    }

    /// The order with this number, if it is of this user and query.
    pub fn find(&self, number: u64, uid: u32, query: &str) -> Option<Arc<[JobId]>> {
        let mut kept = lock(&self.0);
        kept.forget();
        let is_meant =
            |order: &KeptOrder| order.number == number && order.uid == uid && order.query == query;
        let at = kept.orders.iter().position(is_meant)?;
        let mut order = kept.orders.remove(at)?;
        order.used = Instant::now();
        let jobs = Arc::clone(&order.jobs);
        kept.orders.push_back(order);
        Some(jobs)
    }
}

impl Inner {
    fn forget(&mut self) {
        self.orders.retain(|order| order.used.elapsed() < KEPT);
        let Some(newest) = self.orders.back().map(|order| order.uid) else {
            return;
        };
        let of_user = |orders: &VecDeque<KeptOrder>| {
            orders.iter().filter(|order| order.uid == newest).count()
        };
        while of_user(&self.orders) > MOST_OF_USER
            && let Some(oldest) = self.orders.iter().position(|order| order.uid == newest)
        {
            self.orders.remove(oldest);
        }
        let numbers = |orders: &VecDeque<KeptOrder>| {
            orders.iter().map(|order| order.jobs.len()).sum::<usize>()
        };
        while numbers(&self.orders) > MOST_NUMBERS {
            self.orders.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(count: usize) -> Arc<[JobId]> {
        (0..count as u64).map(JobId).collect()
    }

    #[test]
    fn an_order_belongs_to_one_user_and_one_query() {
        let kept = KeptOrders::default();
        let number = kept.keep(7, "sort=name".into(), jobs(3));
        assert!(kept.find(number, 7, "sort=name").is_some());
        assert!(kept.find(number, 8, "sort=name").is_none());
        assert!(kept.find(number, 7, "sort=user").is_none());
        assert!(kept.find(number + 1, 7, "sort=name").is_none());
    }

    #[test]
    fn a_user_pushes_out_only_own_orders_and_all_have_a_bound() {
        let kept = KeptOrders::default();
        let other = kept.keep(8, String::new(), jobs(1));
        let mine: Vec<u64> = (0..=MOST_OF_USER)
            .map(|_| kept.keep(7, String::new(), jobs(1)))
            .collect();
        assert!(kept.find(mine[0], 7, "").is_none());
        assert!(kept.find(mine[1], 7, "").is_some());
        assert!(kept.find(other, 8, "").is_some());
        let large = kept.keep(9, String::new(), jobs(MOST_NUMBERS));
        assert!(kept.find(large, 9, "").is_some());
        assert!(kept.find(other, 8, "").is_none());
        let larger = kept.keep(9, String::new(), jobs(MOST_NUMBERS + 1));
        assert!(kept.find(larger, 9, "").is_none());
    }

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let cursor = Cursor { order: 3, at: 100 };
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        for wrong in ["", "3", "3-", "-1", "a-1", "3-100-1"] {
            assert_eq!(Cursor::parse(wrong), None, "{wrong}");
        }
    }
}
