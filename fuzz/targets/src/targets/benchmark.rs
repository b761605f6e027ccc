//! What benchmarks read: records of earlier runs, and what fio said.

use forebay_benchmark::posix::outcome;
use forebay_benchmark::record::Record;
use forebay_benchmark::report;

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod benchmark_records {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let Ok(record) = serde_json::from_slice::<Record>(bytes) else { return };
        let written = serde_json::to_vec(&record).expect("a record can be written");
        let again: Record = serde_json::from_slice(&written).expect("what is written can be read");
        // By what is written of it: a number that is none is equal to nothing.
        assert_eq!(serde_json::to_vec(&again).ok(), Some(written));
        let page = report::html(&record);
        assert!(page.contains("<html"));
        assert_eq!(report::text(&again), report::text(&record));
        assert_eq!(report::csv(&again), report::csv(&record));
        let both = [("one".to_owned(), record), ("two".to_owned(), again)];
        for comparison in [report::compare(&both), report::scaling(&both)].into_iter().flatten() {
            assert!(comparison.html().contains("<html"));
            drop(comparison.text());
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        vec![("posix", RECORD_POSIX.into()), ("read", RECORD_READ.into())]
    }

    const RECORD_POSIX: &str = include_str!("benchmark/posix.json");
    const RECORD_READ: &str = include_str!("benchmark/read.json");
}

pub(super) mod fio_output {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let clients = u32::from(input.u8());
        let output = input.rest();
        if let Ok(found) = outcome(output, clients) {
            assert_eq!(outcome(output, clients).as_ref(), Ok(&found), "two readings are one");
            assert!(serde_json::to_vec(&found).is_ok());
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let job = |name: &str| {
            format!(
                r#"{{"jobname":"{name}","error":0,"job options":{{}},"read":{{"io_bytes":1048576,"bw_bytes":5000000.5,"iops":1220.7,"runtime":200,"total_ios":256,"short_ios":0,"lat_ns":{{"min":1,"max":90,"mean":8.5,"stddev":1.0,"N":256}},"clat_ns":{{"min":1,"max":90,"mean":8.5,"N":256,"percentile":{{"50.000000":7,"99.000000":80,"99.900000":90}},"bins":{{"7":200,"80":56}}}}}},"usr_cpu":10.0,"sys_cpu":20.0}}"#
            )
        };
        let local = format!("fio: starts\n{{\"fio version\":\"fio-3.36\",\"jobs\":[{}]}}\n", job("read"));
        let client = job("read").replacen('{', "{\"hostname\":\"node1\",\"port\":8765,", 1);
        let remote = format!("{{\"client_stats\":[{client},{}]}}", job("All clients"));
        vec![
            ("local", Output::default().u8(1).bytes(local).done()),
            ("clients", Output::default().u8(1).bytes(remote).done()),
        ]
    }
}
