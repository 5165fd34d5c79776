//! Two nodes on one Redis exclude each other under random faults.

use std::time::Duration;

use forrst_testkit::{Proxy, RedisServer, Traffic, Way};
use tokio::time::sleep;

use crate::random_tasks::{Faults, exclude_each_other, seeded};
use crate::redis_nodes::fixture::{open_at, service};

/// A Redis, and the proxy between it and one of the nodes.
struct RedisFaults {
    redis: RedisServer,
    proxy: Proxy,
}

impl Faults for RedisFaults {
    async fn inject_one(&mut self, rng: &mut fastrand::Rng) {
        let short = Duration::from_millis(rng.u64(5..300));
        let number = rng.u8(0..9);
        match number {
            0 => {
                self.redis.pause();
                // Sometimes for longer than the timeout of a command.
                sleep(short * rng.u32(1..10)).await;
                self.redis.resume();
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
            5 => drop(self.redis.ask(&["FUNCTION", "FLUSH"])),
            6 => drop(self.redis.ask(&["CLIENT", "KILL", "TYPE", "normal"])),
            7 => drop(self.redis.ask(&["CLIENT", "KILL", "TYPE", "pubsub"])),
            _ => self.redis.restart(),
        }
        sleep(short).await;
    }

    async fn heal(&mut self) {
        self.proxy.heal();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn locks_exclude_each_other_under_random_faults() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(redis.port());
    let urls = [redis.url(), proxy.url()];
    let services = [
        service(&open_at(&urls[0]).await),
        service(&open_at(&urls[1]).await),
    ];
    exclude_each_other(services, RedisFaults { redis, proxy }, seeded()).await;
}
