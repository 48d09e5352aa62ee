package shardfleet.peer;

import java.io.IOException;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import software.amazon.awssdk.http.Protocol;
import software.amazon.awssdk.http.nio.netty.Http2Configuration;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.StreamConfig;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.metrics.NullMetricsFactory;
import software.amazon.kinesis.processor.FormerStreamsLeasesDeletionStrategy;
import software.amazon.kinesis.processor.MultiStreamTracker;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.ShardRecordProcessorFactory;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.processor.StreamTracker;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;
import sun.misc.Signal;

/** One KCL worker on local endpoints: wiring, signals and exit. What it prints is described in README.md. */
public final class Peer {
    private final Options options;
    private final CountDownLatch finished = new CountDownLatch(1);
    private final AtomicBoolean stopping = new AtomicBoolean();
    private volatile Scheduler scheduler;
    private volatile boolean graceful;

    private Peer(Options options) {
        this.options = options;
    }

    public static void main(String[] args) throws Exception {
        if (args.length == 0 || args[0].equals("--help")) {
            System.out.println(Options.HELP);
            return;
        }
        if (args.length == 2 && args[0].equals("--config") && args[1].equals("list")) {
            args = new String[] {"--kinesis", "http://127.0.0.1:1", "--dynamodb", "http://127.0.0.1:1",
                "--app", "none", "--stream", "none", "--config", "list"};
        }
        int code;
        try {
            code = new Peer(Options.parse(args)).run();
        } catch (IllegalArgumentException e) {
            System.err.println("kcl-peer: " + e.getMessage());
            code = 2;
        }
        // Client threads of the SDK may linger; the work is done.
        Runtime.getRuntime().halt(code);
    }

    private int run() throws Exception {
        if (!options.cbor) {
            System.setProperty("aws.cborEnabled", "false");
        }
        if (options.config.contains("list")) {
            build();
            return 0;
        }
        Events.emit("starting", "pid", ProcessHandle.current().pid(), "worker", options.worker, "app", options.app,
                "kcl", kclVersion(), "jvm_start_ms", ManagementFactory.getRuntimeMXBean().getStartTime());
        scheduler = build();
        Signal.handle(new Signal("TERM"), signal -> stop("SIGTERM"));
        Signal.handle(new Signal("INT"), signal -> stop("SIGINT"));
        var timer = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "peer-timer");
            thread.setDaemon(true);
            return thread;
        });
        if (options.statsMs > 0) {
            timer.scheduleAtFixedRate(
                    () -> Usage.emit("usage"), options.statsMs, options.statsMs, TimeUnit.MILLISECONDS);
        }
        if (options.maxRunMs > 0) {
            timer.schedule(() -> stop("max-run-ms"), options.maxRunMs, TimeUnit.MILLISECONDS);
        }
        if (options.untilEof) {
            Thread parent = new Thread(Peer::awaitEof, "peer-parent");
            parent.setDaemon(true);
            parent.start();
        }
        Thread worker = new Thread(scheduler, "peer-scheduler");
        worker.setDaemon(true);
        worker.start();
        new Thread(() -> {
            join(worker);
            if (!stopping.get()) {
                Events.emit("gave_up");   // initialisation failed for good, or KCL stopped by itself
                finished.countDown();
            }
        }, "peer-watch").start();

        finished.await();
        Usage.emit("stopped", "graceful", graceful);
        return graceful ? 0 : 1;
    }

    private static void awaitEof() {
        try {
            while (System.in.read() >= 0) {
                // Nothing is said to a worker; only the end counts.
            }
        } catch (IOException e) {
            // As good as the end.
        }
        Runtime.getRuntime().halt(3);
    }

    /** An ordered stop with a deadline, then a hard one. Runs on its own thread; the first caller wins. */
    private void stop(String why) {
        if (!stopping.compareAndSet(false, true)) {
            return;
        }
        new Thread(() -> {
            Events.emit("stopping", "why", why);
            try {
                graceful = scheduler.startGracefulShutdown().get(options.deadlineMs, TimeUnit.MILLISECONDS);
            } catch (TimeoutException late) {
                Events.emit("stop_timed_out");
                scheduler.shutdown();
            } catch (Exception e) {
                Events.emit("stop_failed", "error", e.toString());
                scheduler.shutdown();
            }
            finished.countDown();
        }, "peer-stop").start();
    }

    private Scheduler build() throws Exception {
        Region region = Region.of(options.region);
        var http = NettyNioAsyncHttpClient.builder()
                .maxConcurrency(1000)
                .protocol(options.http2 ? Protocol.HTTP2 : Protocol.HTTP1_1);
        if (options.http2) {
            http.http2Configuration(Http2Configuration.builder()
                    .initialWindowSize(512 * 1024)
                    .healthCheckPingPeriod(Duration.ofSeconds(60))
                    .build());
        }
        KinesisAsyncClient kinesis = KinesisAsyncClient.builder()
                .region(region).endpointOverride(URI.create(options.kinesis)).httpClientBuilder(http).build();
        DynamoDbAsyncClient dynamodb = DynamoDbAsyncClient.builder()
                .region(region).endpointOverride(URI.create(options.dynamodb)).build();
        // The library insists on a client; the null metrics factory below sees to it that it is never used.
        CloudWatchAsyncClient cloudwatch = CloudWatchAsyncClient.builder()
                .region(region).endpointOverride(URI.create("http://127.0.0.1:1")).build();

        InitialPositionInStreamExtended position = position(options.position);
        StreamTracker tracker = options.streams == null
                ? new SingleStreamTracker(options.stream, position)
                : tracker(streams(position));
        ConfigsBuilder configs = new ConfigsBuilder(
                tracker, options.app, kinesis, dynamodb, cloudwatch, options.worker, new Factory());

        var coordinator = configs.coordinatorConfig();
        var leases = configs.leaseManagementConfig();
        var lifecycle = configs.lifecycleConfig();
        var processor = configs.processorConfig();
        var retrieval = configs.retrievalConfig();
        var polling = options.stream == null
                ? new PollingConfig(kinesis) : new PollingConfig(options.stream, kinesis);
        Knobs knobs = new Knobs().on(leases).on(coordinator).on(polling).on(retrieval).on(lifecycle).on(processor)
                .onPart(leases, "gracefulLeaseHandoffConfig")
                .onPart(leases, "workerUtilizationAwareAssignmentConfig");
        for (String assignment : options.config) {
            if (assignment.equals("list")) {
                knobs.names().forEach(System.out::println);
                return null;
            }
            knobs.set(assignment);
        }
        setWorkerMetrics(leases, options.workerMetrics);
        coordinator.workerStateChangeListener(state -> {
            Events.emit("state", "state", state);
            if (state.name().equals("STARTED")) {
                Events.emit("ready", "worker", options.worker);
            }
        });
        if (options.fanout) {
            FanOutConfig fanout = new FanOutConfig(kinesis).applicationName(options.app);
            retrieval.retrievalSpecificConfig(options.stream == null ? fanout : fanout.streamName(options.stream));
        } else {
            retrieval.retrievalSpecificConfig(polling);
        }
        return new Scheduler(configs.checkpointConfig(), coordinator, leases, lifecycle,
                configs.metricsConfig().metricsFactory(new NullMetricsFactory()), processor, retrieval);
    }

    /** The library's version by its jar. */
    private static String kclVersion() throws IOException {
        String path = "/META-INF/maven/software.amazon.kinesis/amazon-kinesis-client/pom.properties";
        Properties properties = new Properties();
        try (InputStream in = Scheduler.class.getResourceAsStream(path)) {
            if (in != null) {
                properties.load(in);
            }
        }
        return properties.getProperty("version", "unknown");
    }

    /** Worker metrics exist from 3.0 on, so everything here goes by name. */
    private static void setWorkerMetrics(Object leases, String kind) throws Exception {
        Object config;
        try {
            config = leases.getClass().getMethod("workerUtilizationAwareAssignmentConfig").invoke(leases);
        } catch (NoSuchMethodException kcl2) {
            return;
        }
        if (kind.equals("auto")) {
            return;
        }
        if (kind.equals("none")) {
            config.getClass().getMethod("disableWorkerMetrics", boolean.class).invoke(config, true);
            return;
        }
        String base = "software.amazon.kinesis.worker.metric.";
        Class<?> rangeType = Class.forName(base + "OperatingRange");
        Object builder = rangeType.getMethod("builder").invoke(null);
        builder = builder.getClass().getMethod("maxUtilization", int.class).invoke(builder, 100);
        Object range = builder.getClass().getMethod("build").invoke(builder);
        Object metric;
        if (kind.equals("cpu")) {
            metric = Class.forName(base + "impl.linux.LinuxCpuWorkerMetric").getConstructor(rangeType).newInstance(range);
        } else if (kind.startsWith("fixed:")) {
            metric = fixedMetric(base, range, Double.parseDouble(kind.substring(6)));
        } else {
            throw new IllegalArgumentException("--worker-metrics " + kind);
        }
        config.getClass().getMethod("workerMetricList", List.class).invoke(config, new ArrayList<>(List.of(metric)));
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object fixedMetric(String base, Object range, double percent) throws Exception {
        Class<?> type = Class.forName(base + "WorkerMetric");
        Object cpu = Enum.valueOf((Class<Enum>) Class.forName(base + "WorkerMetricType"), "CPU");
        Object builder = Class.forName(base + "WorkerMetric$WorkerMetricValue").getMethod("builder").invoke(null);
        builder = builder.getClass().getMethod("value", Double.class).invoke(builder, percent);
        Object value = builder.getClass().getMethod("build").invoke(builder);
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, args) -> {
            switch (method.getName()) {
                case "getShortName": return "C";
                case "capture": return value;
                case "getOperatingRange": return range;
                case "getWorkerMetricType": return cpu;
                case "hashCode": return System.identityHashCode(proxy);
                case "equals": return proxy == args[0];
                default: return "fixed CPU metric";
            }
        });
    }

    private static InitialPositionInStreamExtended position(String text) {
        if (text.startsWith("AT_TIMESTAMP:")) {
            return InitialPositionInStreamExtended.newInitialPositionAtTimestamp(
                    new Date(Long.parseLong(text.substring("AT_TIMESTAMP:".length()))));
        }
        return InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.valueOf(text));
    }

    private List<StreamConfig> streams(InitialPositionInStreamExtended position) {
        List<StreamConfig> configs = new ArrayList<>();
        for (String entry : options.streams.split(",")) {
            configs.add(new StreamConfig(
                    StreamIdentifier.multiStreamInstance(options.account + ":" + entry), position));
        }
        return configs;
    }

    private static MultiStreamTracker tracker(List<StreamConfig> streams) {
        return new MultiStreamTracker() {
            @Override
            public List<StreamConfig> streamConfigList() {
                return streams;
            }

            @Override
            public FormerStreamsLeasesDeletionStrategy formerStreamsLeasesDeletionStrategy() {
                return new FormerStreamsLeasesDeletionStrategy.NoLeaseDeletionStrategy();
            }
        };
    }

    private static void join(Thread thread) {
        try {
            thread.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private final class Factory implements ShardRecordProcessorFactory {
        @Override
        public ShardRecordProcessor shardRecordProcessor() {
            return new PeerProcessor(options, null, () -> stop("stop-after"));
        }

        @Override
        public ShardRecordProcessor shardRecordProcessor(StreamIdentifier stream) {
            return new PeerProcessor(options, stream, () -> stop("stop-after"));
        }
    }
}
