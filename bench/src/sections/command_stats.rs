//! How many commands Redis has run, and for how long, by its own statistics (`INFO commandstats`).

use super::Redis;

/// The commands by which a client runs a script.
const SCRIPTS: [&str; 4] = ["fcall", "fcall_ro", "evalsha", "evalsha_ro"];

/// The number of calls, and their time inside Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Calls {
    pub(super) count: f64,
    pub(super) micros: f64,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct CommandStats {
    pub(super) scripts: Calls,
    /// All other commands. Most are run by the scripts, so that their time is included in that of the scripts.
    pub(super) others: Calls,
}

impl CommandStats {
    pub(super) fn reset(redis: &Redis) {
        redis.server.cli(&["CONFIG", "RESETSTAT"]);
    }

    /// The statistics since the reset.
    pub(super) fn read(redis: &Redis) -> Self {
        Self::parse(&redis.server.cli(&["INFO", "commandstats"]))
    }

    fn parse(info: &str) -> Self {
        let mut stats = Self::default();
        let lines = info.lines().filter_map(|line| {
            let (name, numbers) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let number = |name: &str| {
                let mut pairs = numbers
                    .trim()
                    .split(',')
                    .filter_map(|it| it.split_once('='));
                let (_, number) = pairs.find(|(key, _)| *key == name)?;
                number.parse::<f64>().ok()
            };
            Some((name, number("calls")?, number("usec")?))
        });
        for (name, count, micros) in lines {
            let calls = match SCRIPTS.contains(&name) {
                true => &mut stats.scripts,
                false => &mut stats.others,
            };
            calls.count += count;
            calls.micros += micros;
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_counted_apart_from_other_commands() {
        let info = "# Commandstats\r\n\
            cmdstat_fcall:calls=3,usec=60,usec_per_call=20.00,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_fcall_ro:calls=1,usec=4,usec_per_call=4.00,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_config|resetstat:calls=1,usec=30,usec_per_call=30.00,rejected_calls=0,failed_calls=0\r\n";
        let calls = |count, micros| Calls { count, micros };
        let expected = CommandStats {
            scripts: calls(4.0, 64.0),
            others: calls(1.0, 30.0),
        };
        assert_eq!(CommandStats::parse(info), expected);
    }
}
