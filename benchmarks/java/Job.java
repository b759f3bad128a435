import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;

/**
 * One job of a client process, as worker.py has it: the words "@ready", "@started" and "@done" to
 * the controller, "go" and "stop" from it, stamps in bodies, pacing, and percentiles.
 *
 * <p>Arguments are name=value pairs, named as the fields of the Python class Job.
 */
final class Job {
  private static final long TICK_NS = 1_000_000;
  private static final BufferedReader STDIN =
      new BufferedReader(new InputStreamReader(System.in));

  final String role;
  final String variant;
  final String address;
  final String topic;
  final String warmUpTopic;
  final int sizeBytes;
  final int count;
  final int warmUp;
  final int topics;
  final int rate;
  final boolean create;
  final boolean marker;

  Job(String[] arguments) {
    Map<String, String> given = new HashMap<>();
    for (String argument : arguments) {
      int split = argument.indexOf('=');
      given.put(argument.substring(0, split), argument.substring(split + 1));
    }
    role = given.get("role");
    variant = given.get("variant");
    address = given.get("address");
    topic = given.get("topic");
    warmUpTopic = given.get("warm_up_topic");
    sizeBytes = Integer.parseInt(given.get("size_bytes"));
    count = Integer.parseInt(given.get("count"));
    warmUp = Integer.parseInt(given.get("warm_up"));
    topics = Integer.parseInt(given.get("topics"));
    rate = Integer.parseInt(given.get("rate"));
    create = given.get("create").equals("True");
    marker = given.get("marker").equals("True");
  }

  List<String> topicNames() {
    if (topics == 1) {
      return List.of(topic);
    }
    List<String> names = new ArrayList<>();
    for (int number = 0; number < topics; number++) {
      names.add(topic + "-" + number);
    }
    return names;
  }

  byte[] body() {
    byte[] body = new byte[sizeBytes];
    new Random(1).nextBytes(body);
    return body;
  }

  static void say(String words) {
    System.out.println("@" + words);
    System.out.flush();
  }

  static void awaitGo() throws IOException {
    say("ready");
    if (!"go".equals(STDIN.readLine())) {
      throw new IOException("the controller ended before it said go");
    }
  }

  /** Wall clock and CPU of this process since its making. */
  static final class Stopwatch {
    private final long cpuNs = cpuNs();
    private final long startNs = System.nanoTime();

    /** Stops, and tells the controller. System.nanoTime is the monotonic clock of all others. */
    void done(int count, String latency) {
      long endNs = System.nanoTime();
      double cpu = (cpuNs() - cpuNs) / 1e9;
      say(
          "done {\"count\":" + count + ",\"start_ns\":" + startNs + ",\"end_ns\":" + endNs
              + ",\"cpu_s\":" + cpu + ",\"latency\":" + latency + "}");
    }

    private static long cpuNs() {
      var system = ManagementFactory.getOperatingSystemMXBean();
      return ((com.sun.management.OperatingSystemMXBean) system).getProcessCpuTime();
    }
  }

  interface HandOver {
    void send(byte[] body) throws Exception;
  }

  /** Hands over stamped bodies at the job's rate; what is due within a tick goes together. */
  void pace(HandOver handOver) throws Exception {
    byte[] pad = body();
    long startNs = System.nanoTime() + 5 * TICK_NS;
    int sent = 0;
    while (sent < count) {
      long nowNs = System.nanoTime();
      long tick = Math.floorDiv(nowNs - startNs, TICK_NS);
      long until = Math.min(count, (tick + 1) * rate / 1000);
      for (; sent < until; sent++) {
        handOver.send(stamped(pad, startNs + (long) sent * 1000 / rate * TICK_NS));
      }
      long waitNs = startNs + (tick + 1) * TICK_NS - System.nanoTime();
      if (waitNs > 0) {
        LockSupport.parkNanos(waitNs);
      }
    }
  }

  static byte[] stamped(byte[] pad, long dueNs) {
    byte[] body = pad.clone();
    ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN).putLong(System.nanoTime()).putLong(dueNs);
    return body;
  }

  /** When a body left and was due; both 0 in the marker. */
  static long[] stampsOf(byte[] body) {
    ByteBuffer stamps = ByteBuffer.wrap(body).order(ByteOrder.LITTLE_ENDIAN);
    return new long[] {stamps.getLong(), stamps.getLong()};
  }

  /** Percentiles as the JSON of the Python class Latency. */
  static String latency(long[] timesNs, long[] dueNs) {
    long[] times = timesNs.clone();
    Arrays.sort(times);
    String text =
        "{\"p50_us\":" + at(times, 0.5) + ",\"p99_us\":" + at(times, 0.99) + ",\"p999_us\":"
            + at(times, 0.999) + ",\"max_us\":" + at(times, 1.0);
    if (dueNs != null) {
      long[] due = dueNs.clone();
      Arrays.sort(due);
      text += ",\"due_p50_us\":" + at(due, 0.5) + ",\"due_p99_us\":" + at(due, 0.99);
    }
    return text + "}";
  }

  private static double at(long[] orderedNs, double share) {
    int place = (int) Math.min(orderedNs.length - 1, (long) (share * orderedNs.length));
    return orderedNs[place] / 1e3;
  }
}
