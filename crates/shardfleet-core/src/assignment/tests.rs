use super::*;
use crate::sequence::ExtendedSequenceNumber;

mod edges;
mod properties;
mod scenarios;

/// A fleet whose plans can be carried out.
#[derive(Clone)]
struct Sim {
    leases: Vec<Lease>,
    workers: Vec<WorkerView>,
    policy: AssignmentPolicy,
    /// What a KiB a second costs in points of CPU.
    cpu_per_kbps: f64,
    expired: Vec<LeaseKey>,
    /// From whom a lease came, and in which run.
    moved: BTreeMap<LeaseKey, (Option<WorkerId>, bool, u32)>,
    runs: u32,
}

fn lease(key: usize, owner: Option<&str>, throughput: f64) -> Lease {
    Lease {
        owner: owner.map(Into::into),
        throughput_kbps: Some(throughput),
        ..Lease::new(format!("shard-{key:06}"), ExtendedSequenceNumber::TrimHorizon)
    }
}

fn cpu(id: &str, percent: f64) -> WorkerView {
    let reading = Reading {
        average: percent,
        latest: percent,
        limit: Some(100.0),
    };
    WorkerView {
        readings: BTreeMap::from([(worker_metrics::CPU.to_owned(), reading)]),
        ..WorkerView::without_metrics(id)
    }
}

/// `owned`: worker and the throughputs of its leases.
fn sim(owned: &[(&str, &[f64])]) -> Sim {
    let mut leases = Vec::new();
    for (owner, throughputs) in owned {
        for throughput in *throughputs {
            leases.push(lease(
                leases.len(),
                Some(*owner).filter(|owner| !owner.is_empty()),
                *throughput,
            ));
        }
    }
    let names = owned
        .iter()
        .map(|(owner, _)| *owner)
        .filter(|owner| !owner.is_empty());
    Sim {
        leases,
        workers: names.map(WorkerView::without_metrics).collect(),
        policy: AssignmentPolicy::default(),
        cpu_per_kbps: 0.0,
        expired: Vec::new(),
        moved: BTreeMap::new(),
        runs: 0,
    }
}

impl Sim {
    fn plan(&self, balance: bool) -> (AssignmentPlan, AssignmentReport) {
        let observed: Vec<_> = self
            .leases
            .iter()
            .map(|lease| ObservedLease {
                expired: self.expired.contains(&lease.lease_key),
                moved: self
                    .moved
                    .get(&lease.lease_key)
                    .map(|(from, by_handoff, run)| RecentMove {
                        by_handoff: *by_handoff,
                        from: from.clone(),
                        age: Duration::from_secs(60) * (self.runs - run),
                    }),
                ..ObservedLease::live(lease)
            })
            .collect();
        plan(
            &FleetView {
                leases: &observed,
                workers: &self.workers,
                balance,
            },
            &self.policy,
        )
    }

    /// Every write happens, every handoff completes, and readings follow from the leases.
    fn carry_out(&mut self, plan: &AssignmentPlan) {
        self.runs += 1;
        for planned in &plan.moves {
            let came = (
                planned.from.clone(),
                planned.kind == MoveKind::Handoff,
                self.runs - 1,
            );
            self.moved.insert(planned.lease_key.clone(), came);
            let lease = self
                .leases
                .iter_mut()
                .find(|lease| lease.lease_key == planned.lease_key)
                .expect("exists");
            *lease = planned.write.apply(lease).expect("the condition holds");
            if planned.kind == MoveKind::Handoff {
                *lease = LeaseWrite::assign(lease, &planned.to)
                    .apply(lease)
                    .expect("completes");
            }
        }
        self.expired.clear();
        if self.cpu_per_kbps > 0.0 {
            for worker in &mut self.workers {
                let percent = self
                    .leases
                    .iter()
                    .filter(|lease| lease.owner.as_ref() == Some(&worker.worker_id))
                    .filter_map(|lease| lease.throughput_kbps)
                    .sum::<f64>()
                    * self.cpu_per_kbps;
                *worker = cpu(worker.worker_id.as_str(), percent);
            }
        }
    }

    /// Plans and carries out until nothing moves; the number of moves of each run.
    fn run(&mut self, most: usize) -> Vec<usize> {
        let mut moves = Vec::new();
        for _ in 0..most {
            let (plan, _) = self.plan(true);
            if plan.moves.is_empty() {
                return moves;
            }
            moves.push(plan.moves.len());
            self.carry_out(&plan);
        }
        panic!("still moving after {most} runs: {moves:?}");
    }

    fn counts(&self) -> Vec<usize> {
        let of = |worker: &WorkerView| {
            self.leases
                .iter()
                .filter(|lease| lease.owner.as_ref() == Some(&worker.worker_id))
                .count()
        };
        self.workers.iter().map(of).collect()
    }

    fn throughputs(&self) -> Vec<f64> {
        let of = |worker: &WorkerView| {
            self.leases
                .iter()
                .filter(|lease| lease.owner.as_ref() == Some(&worker.worker_id))
                .filter_map(|lease| lease.throughput_kbps)
                .sum()
        };
        self.workers.iter().map(of).collect()
    }
}
