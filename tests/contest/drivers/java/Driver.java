// Redisson's locks for `make peers`: an order on stdin, an answer on stdout (the two documents of ../../clients/loops.py); with the
// word `steps` the order is one line, and Steps.java answers those that follow.
// Rules: the library's defaults, one client per instance; a cycle is acquire, hold, release; one thread per caller, since
// a lock belongs to its thread.
import com.google.gson.FieldNamingPolicy;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public final class Driver {
    static final Gson JSON = new GsonBuilder().setFieldNamingPolicy(FieldNamingPolicy.LOWER_CASE_WITH_UNDERSCORES).create();
    static final double BUCKET = Math.log(1.01);
    static final double BIN_S = 0.1;

    static final class Order {
        String name;
        List<String> urls;
        List<Integer> pids;
        double seconds;
        double warmupS;
        int callers;
        boolean own;
        double holdS;
        long ttlMs;
        long waitMs;
    }

    static final class Answer {
        double seconds;
        long cycles;
        double clientUs;
        double serverUs;
        Map<Integer, Long> acquires = new HashMap<>();
        long failed;
        List<Long> leasesByCaller = new ArrayList<>();
        Map<Integer, Long> bins = new HashMap<>();
        long gaveUp;
        long allCycles;
        Map<String, Long> errors = new HashMap<>();
    }

    /** What one caller saw. */
    static final class Seen {
        final Map<Integer, Long> acquires = new HashMap<>();
        final Map<Integer, Long> bins = new HashMap<>();
        final Map<String, Long> errors = new HashMap<>();
        long asked;
        long granted;
        long leases;
        long gaveUp;
        long all;
    }

    /** The locks of one process: a name → RLock, MultiLock or RedLock over all instances. */
    static final class Locks {
        private final String kind;
        private final List<RedissonClient> clients;

        Locks(Order order) {
            kind = order.name;
            clients = order.urls.stream().map(Locks::connect).collect(Collectors.toList());
        }

        private static RedissonClient connect(String url) {
            Config config = new Config();
            config.useSingleServer().setAddress(url);
            return Redisson.create(config);
        }

        @SuppressWarnings("deprecation")
        RLock of(String resource) {
            RLock[] all = clients.stream().map(client -> client.getLock(resource)).toArray(RLock[]::new);
            if (kind.endsWith("RLock")) {
                return all[0];
            }
            return kind.endsWith("MultiLock") ? new RedissonMultiLock(all) : new RedissonRedLock(all);
        }
    }

    public static void main(String[] words) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (words.length > 0 && words[0].equals("steps")) {
            Order order = JSON.fromJson(input.readLine(), Order.class);
            new Steps(new Locks(order)).run(input);
        } else {
            Order order = JSON.fromJson(input, Order.class);
            measure(order, new Locks(order));
        }
        System.exit(0); // Redisson's threads would stay
    }

    private static void measure(Order order, Locks locks) throws Exception {
        System.err.println("begin");
        long begin = System.nanoTime();
        long measure = begin + (long) (order.warmupS * 1e9);
        long end = measure + (long) (order.seconds * 1e9);
        List<Seen> all = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int caller = 0; caller < order.callers; caller++) {
            Seen seen = new Seen();
            RLock lock = locks.of(order.own ? "peers:r" + caller : "peers:hot");
            all.add(seen);
            threads.add(new Thread(() -> call(order, lock, seen, begin, measure, end)));
        }
        threads.forEach(Thread::start);
        sleepUntil(measure);
        double client = cpuUs();
        double server = runUs(order.pids);
        sleepUntil(end);
        client = cpuUs() - client;
        server = runUs(order.pids) - server;
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println(JSON.toJson(sum(order, all, client, server)));
    }

    private static void call(Order order, RLock lock, Seen seen, long begin, long measure, long end) {
        for (;;) {
            long began = System.nanoTime();
            if (began >= end) {
                return;
            }
            boolean measured = began >= measure;
            seen.asked += measured ? 1 : 0;
            try {
                if (!lock.tryLock(order.waitMs, order.ttlMs, TimeUnit.MILLISECONDS)) {
                    seen.gaveUp++;
                    continue;
                }
            } catch (Exception error) {
                failed(seen, "lock");
                continue;
            }
            if (measured) { // however late it was granted: who waits longest must count
                double us = Math.max((System.nanoTime() - began) / 1e3, 1);
                seen.acquires.merge((int) (Math.log(us) / BUCKET), 1L, Long::sum);
                seen.granted++;
            }
            try {
                if (order.holdS > 0) {
                    TimeUnit.NANOSECONDS.sleep((long) (order.holdS * 1e9));
                }
                lock.unlock();
            } catch (Exception error) {
                failed(seen, "unlock");
                continue;
            }
            long ended = System.nanoTime();
            seen.all++;
            seen.bins.merge((int) ((ended - begin) / 1e9 / BIN_S), 1L, Long::sum);
            seen.leases += measured && ended <= end ? 1 : 0;
        }
    }

    private static void failed(Seen seen, String what) {
        seen.errors.merge(what, 1L, Long::sum);
        try {
            Thread.sleep(1);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static Answer sum(Order order, List<Seen> all, double client, double server) {
        Answer answer = new Answer();
        answer.seconds = order.seconds;
        answer.clientUs = client;
        answer.serverUs = server;
        for (Seen seen : all) {
            answer.cycles += seen.leases;
            answer.leasesByCaller.add(seen.leases);
            answer.failed += seen.asked - seen.granted;
            answer.gaveUp += seen.gaveUp;
            answer.allCycles += seen.all;
            seen.acquires.forEach((bucket, count) -> answer.acquires.merge(bucket, count, Long::sum));
            seen.bins.forEach((bin, count) -> answer.bins.merge(bin, count, Long::sum));
            seen.errors.forEach((name, count) -> answer.errors.merge(name, count, Long::sum));
        }
        return answer;
    }

    private static void sleepUntil(long nanos) throws InterruptedException {
        TimeUnit.NANOSECONDS.sleep(Math.max(0, nanos - System.nanoTime()));
    }

    private static double cpuUs() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e3;
    }

    private static double runUs(List<Integer> pids) throws IOException {
        double total = 0;
        for (int pid : pids) {
            try (DirectoryStream<Path> threads = Files.newDirectoryStream(Path.of("/proc/" + pid + "/task"))) {
                for (Path thread : threads) {
                    total += Double.parseDouble(Files.readString(thread.resolve("schedstat")).split(" ")[0]) / 1e3;
                }
            }
        }
        return total;
    }
}
