package shardfleet.peer;

import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/** The command line. {@link #HELP} is the reference. */
final class Options {
    static final String HELP = String.join("\n",
            "One Java KCL worker that prints what happens to it as JSON lines on stdout.",
            "",
            "  --kinesis URL           Kinesis endpoint, for instance http://127.0.0.1:4568 (required)",
            "  --dynamodb URL          DynamoDB endpoint (required)",
            "  --region NAME           default us-east-1",
            "  --app NAME              application name, also the lease table's name (required)",
            "  --stream NAME           read one stream",
            "  --streams A:EPOCH,...   multi-stream mode instead; EPOCH is the creation time in seconds",
            "  --account ID            account in multi-stream identifiers; default 000000000000",
            "  --worker NAME           worker id; default: random",
            "  --position P            LATEST, TRIM_HORIZON (default) or AT_TIMESTAMP:<epoch ms>",
            "  --failover-ms N         failoverTimeMillis; default KCL's 10000",
            "  --config KEY=VALUE      any other KCL knob by its property name, repeatable; durations in ms;",
            "                          `worker.sh --config list` prints the names that this KCL version has",
            "  --worker-metrics M      none (default: throughput balancing), cpu (this host's /proc/stat, as on EC2),",
            "                          fixed:PCT (constant CPU figure), auto (KCL decides; probes the cloud's metadata",
            "                          address); ignored by 2.x",
            "  --checkpoint WHEN       per-batch (default), every-n=N records, every-ms=T, none (only at shard end)",
            "  --two-phase-ms T        prepare each checkpoint with application state, wait T ms, then commit it",
            "  --work-us N             burn N microseconds of CPU per record",
            "  --work-sleep-us N       sleep N microseconds per record, per batch at once",
            "  --shutdown-delay-ms N   stay N ms in shutdownRequested before the checkpoint",
            "  --fail-batch N          throw from the Nth processRecords call of this process",
            "  --quiet                 one event per batch instead of one per record",
            "  --stats-ms N            print a usage event every N ms",
            "  --stop-after N          stop in order after N records",
            "  --deadline-ms N         how long an ordered stop may take; default 60000",
            "  --fanout                enhanced fan-out instead of polling (HTTP/2)",
            "  --http2                 talk HTTP/2 to Kinesis also when polling",
            "  --no-cbor               JSON instead of CBOR to Kinesis",
            "  --max-run-ms N          stop in order after this time; a safety net for scripts",
            "  --until-eof             end at once when standard input closes, so as not to outlive whoever started it");

    String kinesis;
    String dynamodb;
    String region = "us-east-1";
    String app;
    String stream;
    String streams;
    String account = "000000000000";
    String worker = "worker-" + UUID.randomUUID();
    String position = "TRIM_HORIZON";
    final List<String> config = new ArrayList<>();
    String workerMetrics = "none";
    long checkpointEveryRecords;
    long checkpointEveryMs;
    boolean checkpointPerBatch = true;
    long twoPhaseMs = -1;
    long workMicros;
    long workSleepMicros;
    long shutdownDelayMs;
    long failBatch;
    boolean quiet;
    long statsMs;
    long stopAfter;
    long deadlineMs = 60_000;
    long maxRunMs;
    boolean fanout;
    boolean http2;
    boolean cbor = true;
    boolean untilEof;

    static Options parse(String[] args) {
        Options o = new Options();
        for (int i = 0; i < args.length; i++) {
            String name = args[i];
            switch (name) {
                case "--quiet": o.quiet = true; continue;
                case "--fanout": o.fanout = true; o.http2 = true; continue;
                case "--http2": o.http2 = true; continue;
                case "--no-cbor": o.cbor = false; continue;
                case "--until-eof": o.untilEof = true; continue;
                default: break;
            }
            if (i + 1 == args.length) {
                throw new IllegalArgumentException(name + ": unknown, or its value is missing");
            }
            String value = args[++i];
            switch (name) {
                case "--kinesis": o.kinesis = value; break;
                case "--dynamodb": o.dynamodb = value; break;
                case "--region": o.region = value; break;
                case "--app": o.app = value; break;
                case "--stream": o.stream = value; break;
                case "--streams": o.streams = value; break;
                case "--account": o.account = value; break;
                case "--worker": o.worker = value; break;
                case "--position": o.position = value; break;
                case "--failover-ms": o.config.add("failoverTimeMillis=" + value); break;
                case "--config": o.config.add(value); break;
                case "--worker-metrics": o.workerMetrics = value; break;
                case "--checkpoint": o.checkpoint(value); break;
                case "--two-phase-ms": o.twoPhaseMs = Long.parseLong(value); break;
                case "--work-us": o.workMicros = Long.parseLong(value); break;
                case "--work-sleep-us": o.workSleepMicros = Long.parseLong(value); break;
                case "--shutdown-delay-ms": o.shutdownDelayMs = Long.parseLong(value); break;
                case "--fail-batch": o.failBatch = Long.parseLong(value); break;
                case "--stats-ms": o.statsMs = Long.parseLong(value); break;
                case "--stop-after": o.stopAfter = Long.parseLong(value); break;
                case "--deadline-ms": o.deadlineMs = Long.parseLong(value); break;
                case "--max-run-ms": o.maxRunMs = Long.parseLong(value); break;
                default: throw new IllegalArgumentException("unknown option " + name);
            }
        }
        o.require(o.kinesis, "--kinesis");
        o.require(o.dynamodb, "--dynamodb");
        o.require(o.app, "--app");
        if ((o.stream == null) == (o.streams == null)) {
            throw new IllegalArgumentException("give --stream or --streams");
        }
        return o;
    }

    private void checkpoint(String when) {
        checkpointPerBatch = false;
        if (when.equals("per-batch")) {
            checkpointPerBatch = true;
        } else if (when.startsWith("every-n=")) {
            checkpointEveryRecords = Long.parseLong(when.substring(8));
        } else if (when.startsWith("every-ms=")) {
            checkpointEveryMs = Long.parseLong(when.substring(9));
        } else if (!when.equals("none")) {
            throw new IllegalArgumentException("--checkpoint " + when);
        }
    }

    boolean checkpoints() {
        return checkpointPerBatch || checkpointEveryRecords > 0 || checkpointEveryMs > 0;
    }

    private void require(String value, String name) {
        if (value == null) {
            throw new IllegalArgumentException(name + " is required");
        }
    }
}
