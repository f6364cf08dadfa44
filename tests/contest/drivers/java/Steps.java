// Steps of `lockbench audit`, as bench/experiments/judge/clients/steps.py says them: a JSON step after the other on stdin, a JSON answer per line on
// stdout. SIGINT interrupts the thread that does them.
import com.google.gson.annotations.SerializedName;
import java.io.BufferedReader;
import java.io.IOException;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import sun.misc.Signal;

final class Steps {
    private static final class Step {
        @SerializedName("do")
        String action;
        String resource;
        long ttlMs;
        long waitMs;
    }

    private static final class Said {
        boolean ok;
        Boolean absent;
        String error;

        static Said of(boolean ok) {
            Said said = new Said();
            said.ok = ok;
            return said;
        }

        static Said absent() {
            Said said = of(false);
            said.absent = true;
            return said;
        }
    }

    private final Driver.Locks locks;
    private RLock held;

    Steps(Driver.Locks locks) {
        this.locks = locks;
    }

    void run(BufferedReader input) throws IOException {
        Thread self = Thread.currentThread();
        Signal.handle(new Signal("INT"), signal -> self.interrupt());
        say(Said.of(true));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Step step = Driver.JSON.fromJson(line, Step.class);
            say(answer(step));
            Thread.interrupted();
        }
    }

    private static void say(Said said) {
        System.out.println(Driver.JSON.toJson(said));
        System.out.flush();
    }

    private Said answer(Step step) {
        try {
            switch (step.action) {
                case "acquire":
                    RLock lock = locks.of(step.resource);
                    boolean got = lock.tryLock(step.waitMs, step.ttlMs, TimeUnit.MILLISECONDS);
                    held = got ? lock : held;
                    return Said.of(got);
                case "release":
                    held.unlock();
                    return Said.of(true);
                case "held":
                    return Said.of(held.isHeldByCurrentThread());
                default:
                    return Said.absent();
            }
        } catch (UnsupportedOperationException none) {
            return Said.absent();
        } catch (Exception error) {
            Said said = Said.of(false);
            String text = error.getClass().getSimpleName() + ": " + error.getMessage();
            said.error = text.substring(0, Math.min(200, text.length()));
            return said;
        }
    }
}
