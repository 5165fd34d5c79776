//! Two nodes on one Postgres exclude each other under random faults.

use std::time::Duration;

use forrst_testkit::{PostgresServer, Proxy, Traffic, Way};
use tokio::time::sleep;

use super::fixture::open_at;
use crate::nodes::service;
use crate::random_tasks::{Faults, exclude_each_other, seeded};

/// A Postgres, and the proxy between it and one of the nodes.
struct PostgresFaults {
    postgres: PostgresServer,
    proxy: Proxy,
}

const OWN: &str = "pid <> pg_backend_pid() AND application_name = 'forrst'";

impl Faults for PostgresFaults {
    async fn inject_one(&mut self, rng: &mut fastrand::Rng) {
        let short = Duration::from_millis(rng.u64(5..300));
        let number = rng.u8(0..9);
        match number {
            0 => {
                self.postgres.pause();
                // Sometimes for longer than the timeout of a command.
                sleep(short * rng.u32(1..10)).await;
                self.postgres.resume();
            }
            1 => self.proxy.cut(Traffic::All),
            2 => self.proxy.lose_answers(rng.usize(1..5)),
            3 => {
                let way = *rng.choice(&[Way::ToServer, Way::ToClient]).unwrap();
                self.proxy.swallow(way, Traffic::All);
                sleep(short).await;
                self.proxy.heal();
            }
            4 => {
                self.proxy.hold_requests();
                sleep(short).await;
                self.proxy.pass();
                self.proxy.cut(Traffic::All);
                sleep(short).await;
                self.proxy.deliver_requests();
            }
            5 | 6 => {
                let all =
                    format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OWN}");
                drop(self.postgres.ask(&all));
            }
            7 => {
                let some = format!(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {OWN} AND random() < 0.5"
                );
                drop(self.postgres.ask(&some));
            }
            _ => self.postgres.restart(),
        }
        sleep(short).await;
    }

    async fn heal(&mut self) {
        self.proxy.heal();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn locks_exclude_each_other_under_random_faults() {
    let postgres = PostgresServer::start();
    let proxy = Proxy::start(postgres.port());
    let services = [
        service(&open_at(&postgres.url()).await),
        service(&open_at(&proxy.postgres_url()).await),
    ];
    exclude_each_other(services, PostgresFaults { postgres, proxy }, seeded()).await;
}
