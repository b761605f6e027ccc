//! `make simulate-faults`: a whole cluster in virtual time, while things go wrong.
//!
//! Workers, mounts and coordinators are the product's own (`cluster.rs`); the network, disks, etcd and the object stores are
//! simulated (`net.rs`, `disk.rs`, `etcd.rs`, `origin.rs`), and so are time, randomness and waiting (`interpose.rs`, `kernel.rs`). Users
//! do what users do (`workload.rs`), things go wrong (`nemesis.rs`, `faults.rs`), and each answer is held against what was true when
//! (`model.rs`). One seed is one run, bit for bit: the fingerprint of what happened says so, and a run that fails is run again by its
//! seed. docs/adr/0020 tells why it is made so.

mod cluster;
mod content;
mod coordinator;
mod disk;
mod etcd;
mod faults;
mod interpose;
mod kernel;
mod model;
mod nemesis;
mod net;
mod origin;
mod run;
mod trace;
mod workload;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;

use crate::run::Plan;

/// Run a Forebay cluster in virtual time, while things go wrong.
#[derive(Debug, Parser)]
struct Arguments {
    /// What all of it follows from; from the clock if not given
    #[arg(long)]
    seed: Option<u64>,
    /// How many hours are simulated
    #[arg(long, default_value_t = 10.0)]
    hours: f64,
    /// How many runs there are, one after the other, each with the next seed and in a process of its own
    #[arg(long)]
    runs: Option<u64>,
    /// Let nothing go wrong
    #[arg(long)]
    no_faults: bool,
    /// Print what happens
    #[arg(long)]
    log: bool,
    /// What of the product's own log is noted: a filter as of RUST_LOG
    #[arg(long, default_value = "info")]
    trace: String,
    /// How many of the last lines are printed when an invariant does not hold
    #[arg(long, default_value_t = 120)]
    last: usize,
    /// Print what the thread of a simulation with this seed is told when it asks for time, randomness and a map's order
    #[arg(long, hide = true)]
    probe: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let from_clock =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64 % 1_000_000_007);
    let seed = arguments.seed.unwrap_or_else(from_clock);
    if arguments.probe {
        return probe(seed);
    }
    if let Some(runs) = arguments.runs {
        return run_all(seed, runs, &arguments);
    }
    println!("seed {seed}, {} h", arguments.hours);
    let plan = Plan { seed, hours: arguments.hours, faults: !arguments.no_faults, show_log: arguments.log };
    trace::listen(&arguments.trace);
    let began = Instant::now();
    let (tell, told) = std::sync::mpsc::channel();
    // A thread of its own, which has asked for nothing yet.
    let simulated = std::thread::Builder::new().name("simulation".to_owned()).stack_size(64 << 20).spawn(move || {
        // A panic outside of any process is noted as a violation, too.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| run::run(&plan)));
        let outcome = (kernel::violation(), kernel::fingerprint(), kernel::now(), summary());
        let _ = tell.send((outcome, kernel::last_lines()));
        // What is left of the processes goes with this one: nothing is to be told of their end.
        loop {
            std::thread::park();
        }
    });
    if simulated.is_err() {
        eprintln!("cannot start a thread");
        return ExitCode::FAILURE;
    }
    let Ok(((violation, (lines, fingerprint), reached, summary), last)) = told.recv() else {
        println!("FAILED seed {seed}: the simulation itself panicked");
        return ExitCode::FAILURE;
    };
    print!("{summary}");
    println!("{lines} lines of log, fingerprint {fingerprint}");
    let hours = reached.as_secs_f64() / 3600.0;
    println!("{hours:.2} h in {:.1} s", began.elapsed().as_secs_f64());
    let Some(violation) = violation else {
        println!("ok: every invariant held, seed {seed}");
        return ExitCode::SUCCESS;
    };
    for line in last.iter().rev().take(arguments.last).rev() {
        println!("  {line}");
    }
    println!("FAILED seed {seed} at {}: {}: {}", kernel::clock(violation.at), violation.invariant, violation.what);
    println!("again: make simulate-faults ARGS=\"--seed {seed} --hours {}\"", arguments.hours);
    ExitCode::FAILURE
}

/// Many runs. A process is one run: what it did before would be seen in what follows.
fn run_all(seed: u64, runs: u64, arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    for number in 0..runs {
        let (seed, hours) = ((seed + number).to_string(), arguments.hours.to_string());
        let mut run = std::process::Command::new(&program);
        run.args(["--seed", &seed, "--hours", &hours, "--last", &arguments.last.to_string()]);
        if arguments.no_faults {
            run.arg("--no-faults");
        }
        let Ok(output) = run.output() else { return ExitCode::FAILURE };
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            print!("{said}{}", String::from_utf8_lossy(&output.stderr));
            println!("FAILED after {} runs that did not", number);
            return ExitCode::FAILURE;
        }
        let line = |beginning: &str| said.lines().find(|line| line.contains(beginning)).unwrap_or_default();
        println!("seed {seed}: {}; {}; {}", line(" h in "), line("fingerprint"), line("users "));
    }
    let hours = runs as f64 * arguments.hours;
    println!("ok: every invariant held in {runs} runs, {hours} h in {:.0} s", began.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

/// What all else rests on: what a thread that simulates asks of the system follows from the seed and the simulated time.
fn probe(seed: u64) -> ExitCode {
    let asked = std::thread::spawn(move || {
        kernel::begin(seed, false);
        let (instant, wall) = (Instant::now(), SystemTime::now());
        std::thread::sleep(std::time::Duration::from_millis(2));
        println!("real time passes unseen: {:?} {:?}", instant.elapsed(), wall.elapsed().unwrap_or_default());
        let wall = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        println!("wall clock {wall:?}, random {:x} {:x}", rand::random::<u128>(), rand::random::<u64>());
        let names = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
        let set: std::collections::HashSet<&str> = names.into_iter().collect();
        println!("order {:?}", set.iter().collect::<Vec<_>>());
        let node = kernel::add_node("probe");
        kernel::start(node, || {
            tokio::spawn(async {
                let began = Instant::now();
                tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
                println!("an hour is {:?}", began.elapsed());
                // Which of two that are ready is chosen by chance: by tokio's own.
                let chosen = |_| async {
                    tokio::select! { () = std::future::ready(()) => 1, () = std::future::ready(()) => 2 }
                };
                println!("chosen {:?}", futures::future::join_all((0..24).map(chosen)).await);
            });
        });
        kernel::run_until(std::time::Duration::from_secs(7200));
        std::process::exit(0);
    });
    let _ = asked.join();
    ExitCode::FAILURE
}

/// What happened, so that a run in which nothing happened is not taken for a proof.
fn summary() -> String {
    format!(
        "users {:?}\nfaults {:?}\njobs {:?}\nnetwork {:?}\norigins {:?}\ndisks {:?}\netcd {:?}\n",
        workload::counts(),
        faults::counts(),
        coordinator::counts(),
        net::counts(),
        origin::counts(),
        disk::counts(),
        etcd::counts(),
    )
}
