import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The jobs of worker.py, done by RocketMQ's own Java client. */
public final class RocketWork {
  private static final int QUEUES = 4;
  private static final int ASYNC_WINDOW = 300;
  private static final int BATCH = 500;
  private static final int BATCHES_IN_FLIGHT = 4;
  private static final int PACED_WINDOW = 2000;
  private static final int ONE_WARM_UP = 1000;
  private static final long TIMEOUT_S = 600;

  private final Job job;
  private final String nameServer;
  private final String broker;

  private RocketWork(Job job) {
    this.job = job;
    nameServer = job.address.split("/")[0];
    broker = job.address.split("/")[1];
  }

  public static void main(String[] arguments) {
    try {
      new RocketWork(new Job(arguments)).run();
    } catch (Throwable error) {
      error.printStackTrace();
      System.exit(1);
    }
    // The client's threads would keep the process alive.
    System.exit(0);
  }

  private void run() throws Exception {
    switch (job.role) {
      case "publish" -> publish();
      case "one" -> one();
      case "paced" -> paced();
      case "consume" -> consume();
      case "follow" -> follow();
      default -> throw new IllegalArgumentException("no role is called " + job.role);
    }
  }

  // --- producing ---------------------------------------------------------------------------------

  private void publish() throws Exception {
    List<String> topics = job.topicNames();
    byte[] body = job.body();
    if (job.create) {
      create(job.warmUpTopic);
      create(topics.toArray(new String[0]));
    }
    DefaultMQProducer producer = producer();
    if (job.warmUp > 0) {
      send(producer, List.of(job.warmUpTopic), body, job.warmUp);
    }
    if (job.marker) {
      sendOne(producer, new byte[job.sizeBytes]);
    }
    Job.awaitGo();
    Job.say("started");
    Job.Stopwatch watch = new Job.Stopwatch();
    send(producer, topics, body, job.count);
    watch.done(job.count, "null");
  }

  private void one() throws Exception {
    byte[] body = job.body();
    create(job.warmUpTopic, job.topic);
    DefaultMQProducer producer = producer();
    send(producer, List.of(job.warmUpTopic), body, job.warmUp);
    for (int number = 0; number < Math.min(ONE_WARM_UP, job.count); number++) {
      sendOne(producer, body);
    }
    Job.awaitGo();
    Job.say("started");
    Job.Stopwatch watch = new Job.Stopwatch();
    long[] timesNs = new long[job.count];
    for (int number = 0; number < job.count; number++) {
      long startNs = System.nanoTime();
      sendOne(producer, body);
      timesNs[number] = System.nanoTime() - startNs;
    }
    watch.done(job.count, Job.latency(timesNs, null));
  }

  private void paced() throws Exception {
    create(job.warmUpTopic, job.topic);
    DefaultMQProducer producer = producer();
    send(producer, List.of(job.warmUpTopic), job.body(), job.warmUp);
    sendOne(producer, new byte[job.sizeBytes]);
    Job.awaitGo();
    Job.say("started");
    Job.Stopwatch watch = new Job.Stopwatch();
    Window window = new Window(PACED_WINDOW);
    job.pace(body -> window.send(producer, new Message(job.topic, body)));
    window.drain(job.count);
    watch.done(job.count, "null");
  }

  private void sendOne(DefaultMQProducer producer, byte[] body) throws Exception {
    SendResult result = producer.send(new Message(job.topic, body));
    if (result.getSendStatus() != SendStatus.SEND_OK) {
      throw new IllegalStateException("not stored: " + result.getSendStatus());
    }
  }

  /** Sends round robin in the way that the variant names; returns at the last ack. */
  private void send(DefaultMQProducer producer, List<String> topics, byte[] body, int count)
      throws Exception {
    if (!job.variant.equals("batches")) {
      Window window = new Window(ASYNC_WINDOW);
      for (int number = 0; number < count; number++) {
        window.send(producer, new Message(topics.get(number % topics.size()), body));
      }
      window.drain(count);
      return;
    }
    Window window = new Window(BATCHES_IN_FLIGHT);
    for (int sent = 0; sent < count; sent += BATCH) {
      List<Message> batch = new ArrayList<>(BATCH);
      String topic = topics.get(sent / BATCH % topics.size());
      for (int number = sent; number < Math.min(count, sent + BATCH); number++) {
        batch.add(new Message(topic, body));
      }
      window.send(producer, batch);
    }
    window.drain(count);
  }

  /** Bounds how many sends are on their way, and counts what is acked. */
  private static final class Window {
    private final int size;
    private final Semaphore room;
    private final AtomicInteger acked = new AtomicInteger();
    private volatile String failure;

    Window(int size) {
      this.size = size;
      this.room = new Semaphore(size);
    }

    void send(DefaultMQProducer producer, Message message) throws Exception {
      room.acquire();
      new Answer(answer -> producer.send(message, answer), 1).send();
    }

    void send(DefaultMQProducer producer, List<Message> batch) throws Exception {
      room.acquire();
      new Answer(answer -> producer.send(batch, answer), batch.size()).send();
    }

    void drain(int count) throws Exception {
      if (!room.tryAcquire(size, TIMEOUT_S, TimeUnit.SECONDS) || acked.get() != count) {
        throw new IllegalStateException(acked + " of " + count + " were acked: " + failure);
      }
    }

    private interface Sending {
      void with(SendCallback answer) throws Exception;
    }

    private final class Answer implements SendCallback {
      private final Sending sending;
      private final int messages;

      Answer(Sending sending, int messages) {
        this.sending = sending;
        this.messages = messages;
      }

      void send() throws Exception {
        sending.with(this);
      }

      @Override
      public void onSuccess(SendResult result) {
        if (result.getSendStatus() == SendStatus.SEND_OK) {
          acked.addAndGet(messages);
        } else {
          failure = "" + result.getSendStatus();
        }
        room.release();
      }

      @Override
      public void onException(Throwable error) {
        // The broker refuses what waited too long in its queue; that is owed a second try.
        if (String.valueOf(error.getMessage()).contains("busy")) {
          try {
            send();
            return;
          } catch (Exception second) {
            error = second;
          }
        }
        failure = error.toString();
        room.release();
      }
    }
  }

  private DefaultMQProducer producer() throws Exception {
    DefaultMQProducer producer = new DefaultMQProducer("bench");
    producer.setNamesrvAddr(nameServer);
    producer.setSendMsgTimeout(60_000);
    producer.setVipChannelEnabled(false);
    producer.setAutoBatch(job.variant.equals("auto"));
    producer.start();
    return producer;
  }

  private void create(String... topics) throws Exception {
    DefaultMQAdminExt admin = new DefaultMQAdminExt();
    admin.setNamesrvAddr(nameServer);
    admin.setInstanceName("admin" + System.nanoTime());
    admin.start();
    for (String topic : topics) {
      TopicConfig config = new TopicConfig(topic);
      config.setReadQueueNums(QUEUES);
      config.setWriteQueueNums(QUEUES);
      admin.createAndUpdateTopicConfig(broker, config);
    }
    long endNs = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    for (String topic : topics) {
      while (!known(admin, topic)) {
        if (System.nanoTime() > endNs) {
          throw new IllegalStateException("no route to topic " + topic + " after 60 s");
        }
        Thread.sleep(50);
      }
    }
    admin.shutdown();
  }

  private static boolean known(DefaultMQAdminExt admin, String topic) throws Exception {
    try {
      return !admin.examineTopicRouteInfo(topic).getQueueDatas().isEmpty();
    } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
      return false;
    }
  }

  // --- consuming ---------------------------------------------------------------------------------

  private interface Take {
    /** True when the reader may stop; called by several threads. */
    boolean bodies(List<MessageExt> messages) throws Exception;
  }

  private void consume() throws Exception {
    if (job.warmUp > 0) {
      AtomicInteger seen = new AtomicInteger();
      read(job.warmUpTopic, list -> seen.addAndGet(list.size()) >= job.warmUp);
    }
    Job.awaitGo();
    Job.Stopwatch[] watch = new Job.Stopwatch[1];
    AtomicInteger seen = new AtomicInteger();
    read(
        job.topic,
        list -> {
          // Balancing takes a second or two before the first fetch, whose time can't be seen.
          synchronized (watch) {
            if (watch[0] == null) {
              Job.say("started");
              watch[0] = new Job.Stopwatch();
            }
          }
          return seen.addAndGet(list.size()) >= job.count;
        });
    watch[0].done(job.count, "null");
  }

  private void follow() throws Exception {
    long[] timesNs = new long[job.count];
    long[] dueNs = new long[job.count];
    AtomicInteger seen = new AtomicInteger();
    Job.Stopwatch[] watch = new Job.Stopwatch[1];
    read(
        job.topic,
        list -> {
          long nowNs = System.nanoTime();
          for (MessageExt message : list) {
            long[] stamps = Job.stampsOf(message.getBody());
            if (stamps[0] == 0) {
              Job.awaitGo();
              Job.say("started");
              watch[0] = new Job.Stopwatch();
              continue;
            }
            int place = seen.getAndIncrement();
            if (place < job.count) {
              timesNs[place] = nowNs - stamps[0];
              dueNs[place] = nowNs - stamps[1];
            }
          }
          return seen.get() >= job.count;
        });
    watch[0].done(job.count, job.rate > 0 ? Job.latency(timesNs, dueNs) : "null");
  }

  private void read(String topic, Take take) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench-" + System.nanoTime());
    CountDownLatch done = new CountDownLatch(1);
    consumer.setNamesrvAddr(nameServer);
    consumer.setInstanceName("reader" + System.nanoTime());
    consumer.setVipChannelEnabled(false);
    consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    consumer.setConsumeMessageBatchMaxSize(32);
    consumer.subscribe(topic, "*");
    Exception[] failure = new Exception[1];
    consumer.registerMessageListener(
        (MessageListenerConcurrently)
            (messages, context) -> {
              try {
                if (take.bodies(messages)) {
                  done.countDown();
                }
              } catch (Exception error) {
                failure[0] = error;
                done.countDown();
              }
              return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
    consumer.start();
    if (!done.await(TIMEOUT_S, TimeUnit.SECONDS)) {
      throw new IllegalStateException("not all of " + topic + " came within " + TIMEOUT_S + " s");
    }
    if (failure[0] != null) {
      throw failure[0];
    }
    consumer.shutdown();
  }
}
