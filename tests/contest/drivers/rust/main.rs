// rslock for `make peers`: an order on stdin, an answer on stdout (the two documents of ../../clients/loops.py); with the word `steps`
// the order is one line, and those that follow are answered, as bench/experiments/judge/clients/steps.py says.
// Rules: the library's defaults; a cycle is acquire, hold, release; one task per caller, on the runtime that the name
// says. Its unlock reports nothing, so a release that failed cannot be counted.
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rslock::{LockError, LockManager};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};

// told `steps`, it gets a name and URLs alone
#[derive(Default, Deserialize)]
#[serde(default)]
struct Order {
    name: String,
    urls: Vec<String>,
    pids: Vec<u32>,
    seconds: f64,
    warmup_s: f64,
    callers: usize,
    own: bool,
    hold_s: f64,
    ttl_ms: u64,
}

#[derive(Default, Serialize)]
struct Answer {
    seconds: f64,
    cycles: u64,
    client_us: f64,
    server_us: f64,
    acquires: HashMap<i64, u64>,
    failed: u64,
    leases_by_caller: Vec<u64>,
    bins: HashMap<i64, u64>,
    gave_up: u64,
    all_cycles: u64,
    errors: HashMap<String, u64>,
}

#[derive(Clone, Copy)]
struct Course {
    begin: Instant,
    measure: Instant,
    end: Instant,
}

#[derive(Default)]
struct Seen {
    acquires: HashMap<i64, u64>,
    asked: u64,
    bins: HashMap<i64, u64>,
    errors: HashMap<String, u64>,
    leases: u64,
    gave_up: u64,
    all: u64,
}

async fn call(order: Arc<Order>, manager: LockManager, caller: usize, course: Course) -> Seen {
    let mut seen = Seen::default();
    let resource = if order.own { format!("peers:r{caller}") } else { "peers:hot".into() };
    let ttl = Duration::from_millis(order.ttl_ms);
    loop {
        let began = Instant::now();
        if began >= course.end {
            return seen;
        }
        let measured = began >= course.measure;
        seen.asked += u64::from(measured);
        let granted = manager.lock(resource.as_bytes(), ttl).await;
        let us = (began.elapsed().as_nanos() as f64 / 1e3).max(1.0);
        let lock = match granted {
            Ok(lock) => lock,
            Err(LockError::Unavailable) => {
                seen.gave_up += 1;
                continue;
            }
            Err(_) => {
                *seen.errors.entry("lock".into()).or_default() += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
        };
        if measured {
            // however late it was granted: who waits longest must count
            *seen.acquires.entry((us.ln() / 1.01f64.ln()) as i64).or_default() += 1;
        }
        if order.hold_s > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(order.hold_s)).await;
        }
        manager.unlock(&lock).await;
        let ended = Instant::now();
        seen.all += 1;
        *seen.bins.entry(((ended - course.begin).as_secs_f64() / 0.1) as i64).or_default() += 1;
        seen.leases += u64::from(measured && ended <= course.end);
    }
}

fn server_us(pids: &[u32]) -> f64 {
    let mut ns = 0.0;
    for pid in pids {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            ns += text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
        }
    }
    ns / 1e3
}

fn client_us() -> f64 {
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

async fn run(order: Arc<Order>) -> Answer {
    let manager = LockManager::new(order.urls.clone());
    eprintln!("begin");
    let begin = Instant::now();
    let measure = begin + Duration::from_secs_f64(order.warmup_s);
    let end = measure + Duration::from_secs_f64(order.seconds);
    let course = Course { begin, measure, end };
    let callers: Vec<_> = (0..order.callers)
        .map(|caller| tokio::spawn(call(order.clone(), manager.clone(), caller, course)))
        .collect();
    tokio::time::sleep_until(measure.into()).await;
    let (client, server) = (client_us(), server_us(&order.pids));
    tokio::time::sleep_until(end.into()).await;
    let mut answer = Answer {
        seconds: order.seconds,
        client_us: client_us() - client,
        server_us: server_us(&order.pids) - server,
        ..Answer::default()
    };
    for caller in callers {
        add(&mut answer, caller.await.expect("a caller panicked"));
    }
    answer
}

fn add(answer: &mut Answer, seen: Seen) {
    answer.cycles += seen.leases;
    answer.leases_by_caller.push(seen.leases);
    answer.failed += seen.asked - seen.acquires.values().sum::<u64>();
    answer.gave_up += seen.gave_up;
    answer.all_cycles += seen.all;
    for (whole, part) in [(&mut answer.acquires, seen.acquires), (&mut answer.bins, seen.bins)] {
        for (number, count) in part {
            *whole.entry(number).or_default() += count;
        }
    }
    for (name, count) in seen.errors {
        *answer.errors.entry(name).or_default() += count;
    }
}

async fn step(order: Arc<Order>) {
    let manager = LockManager::new(order.urls.clone());
    let mut held = None;
    println!("{}", json!({"ok": true}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let words: Value = serde_json::from_str(&line).expect("no step");
        let ttl = Duration::from_millis(words["ttl_ms"].as_u64().unwrap_or(0));
        let answer = match words["do"].as_str() {
            Some("acquire") => match manager.lock(words["resource"].as_str().unwrap_or("").as_bytes(), ttl).await {
                Ok(lock) => {
                    let valid_ms = lock.validity_time as f64;
                    held = Some(lock);
                    json!({"ok": true, "valid_ms": valid_ms})
                }
                Err(error) => json!({"ok": false, "error": error.to_string()}),
            },
            Some("release") => {
                manager.unlock(held.as_ref().expect("nothing is held")).await;
                json!({"ok": true})
            }
            Some("extend") => match manager.extend(held.as_ref().expect("nothing is held"), ttl).await {
                Ok(lock) => {
                    held = Some(lock);
                    json!({"ok": true})
                }
                Err(error) => json!({"ok": false, "error": error.to_string()}),
            },
            Some("held") => {
                json!({"ok": manager.is_freed(held.as_ref().expect("nothing is held")).await.is_ok_and(|freed| !freed)})
            }
            _ => json!({"ok": false, "absent": true}),
        };
        println!("{answer}");
    }
}

fn main() {
    let stepwise = std::env::args().nth(1).as_deref() == Some("steps");
    let mut text = String::new();
    if stepwise {
        let mut one = [0u8];  // and not a byte more: the rest is for `step`
        while std::io::stdin().lock().read(&mut one).is_ok_and(|read| read == 1) && one[0] != b'\n' {
            text.push(one[0] as char);
        }
    } else {
        std::io::stdin().read_to_string(&mut text).expect("no order");
    }
    let order: Arc<Order> = Arc::new(serde_json::from_str(&text).expect("no order"));
    let mut runtime = match order.name.as_str() {
        "rslock, one thread" => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build().expect("no runtime");
    if stepwise {
        return runtime.block_on(step(order));
    }
    let answer = runtime.block_on(run(order));
    println!("{}", serde_json::to_string(&answer).expect("no answer"));
}
