import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own clients on every partition of a topic, and a line for each thing that happened to them.
 *
 * <p>{@code GuardClients BOOTSTRAP REQUEST_TIMEOUT_MS}; orders come by standard input, and it ends with that:
 *
 * <ul>
 *   <li>{@code start TOPIC PARTITIONS PAUSE_MS}: an idempotent producer with acks=all for each partition, so that no
 *       partition waits in a request for another one, and one consumer of all of them.
 *   <li>{@code transact TOPIC PARTITIONS PAUSE_MS}: the same with a transaction for each record; the consumer is one of a group,
 *       commits its offsets, and reads what is committed.
 *   <li>{@code fill TOPIC PARTITIONS RECORDS}: write so many records of 10 kB to each partition.
 *   <li>{@code reread}: a further consumer reads the topic from its beginning, again and again.
 *   <li>{@code stop}: end all of them.
 *   <li>{@code rest P,P}: write nothing to these partitions until {@code wake}.
 *   <li>{@code verify}: read the topic from its beginning and say {@code v ACKNOWLEDGED LOST}.
 * </ul>
 *
 * <p>Said: {@code a PARTITION EPOCH_MS WAITED_US} acknowledged so long after it was sent, {@code c PARTITION EPOCH_MS} consumed, {@code e PARTITION EPOCH_MS
 * ERROR} given up.
 */
public final class GuardClients {
  private static final int VALUE_BYTES = 500;
  private static final int OLD_VALUE_BYTES = 10_000;
  private static final long VERIFY_TIMEOUT_MS = 30_000;
  private static final PrintStream OUT = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false);

  private final String bootstrap;
  private final String requestTimeoutMs;
  private final Map<Integer, Set<Long>> acknowledged = new ConcurrentHashMap<>();
  private final Set<Integer> resting = ConcurrentHashMap.newKeySet();
  private final List<Thread> threads = new ArrayList<>();
  private volatile KafkaConsumer<byte[], byte[]> consumer;
  private volatile boolean going;
  private String topic;
  private int partitions;

  private GuardClients(String bootstrap, String requestTimeoutMs) {
    this.bootstrap = bootstrap;
    this.requestTimeoutMs = requestTimeoutMs;
  }

  public static void main(String[] arguments) throws Exception {
    GuardClients clients = new GuardClients(arguments[0], arguments[1]);
    BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
    say("ready");
    for (String line = orders.readLine(); line != null; line = orders.readLine()) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "start", "transact" -> clients.start(
            words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), words[0].equals("transact"));
        case "fill" -> clients.fill(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]));
        case "reread" -> clients.begin("reread", clients::reread);
        case "stop" -> clients.stop();
        case "rest" -> {
          for (String partition : words[1].split(",")) {
            clients.resting.add(Integer.parseInt(partition));
          }
        }
        case "wake" -> clients.resting.clear();
        case "verify" -> clients.verify();
        default -> throw new IllegalArgumentException(line);
      }
    }
    Runtime.getRuntime().halt(0);
  }

  private static void say(String line) {
    synchronized (OUT) {
      OUT.println(line);
      OUT.flush();
    }
  }

  private Properties properties() {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    properties.put("request.timeout.ms", requestTimeoutMs);
    return properties;
  }

  private void start(String name, int count, long pauseMs, boolean transactions) {
    topic = name;
    partitions = count;
    acknowledged.clear();
    resting.clear();
    going = true;
    for (int partition = 0; partition < count; partition++) {
      int mine = partition;
      acknowledged.put(mine, ConcurrentHashMap.newKeySet());
      begin("produce-" + mine, transactions ? () -> transact(mine, pauseMs) : () -> produce(mine, pauseMs));
    }
    begin("consume", () -> consume(transactions));
  }

  private void begin(String name, Runnable work) {
    Thread thread = new Thread(work, name);
    thread.setDaemon(true);
    thread.start();
    threads.add(thread);
  }

  private void stop() throws InterruptedException {
    going = false;
    if (consumer != null) {
      consumer.wakeup();
    }
    for (Thread thread : threads) {
      thread.interrupt();
      thread.join(2_000);
    }
    threads.clear();
    say("stopped");
  }

  private Properties ofProducer() {
    Properties properties = properties();
    properties.put("acks", "all");
    properties.put("enable.idempotence", "true");
    properties.put("key.serializer", ByteArraySerializer.class.getName());
    properties.put("value.serializer", ByteArraySerializer.class.getName());
    return properties;
  }

  private void fill(String name, int count, int records) throws Exception {
    try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(ofProducer())) {
      List<java.util.concurrent.Future<?>> sent = new ArrayList<>();
      for (int number = 0; number < count * records; number++) {
        byte[] value = ByteBuffer.allocate(OLD_VALUE_BYTES).putLong(-1).array();
        sent.add(producer.send(new ProducerRecord<>(name, number % count, null, value)));
      }
      for (java.util.concurrent.Future<?> one : sent) {
        one.get();
      }
    }
    say("filled");
  }

  /** A record is acknowledged when its transaction is; a producer that got an error is followed by another one. */
  private void transact(int partition, long pauseMs) {
    Properties properties = ofProducer();
    properties.put("transactional.id", topic + "-" + partition);
    Set<Long> kept = acknowledged.get(partition);
    long number = 0;
    while (going) {
      KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
      try {
        producer.initTransactions();
        while (going) {
          long sent = System.nanoTime();
          byte[] value = ByteBuffer.allocate(VALUE_BYTES).putLong(number).array();
          producer.beginTransaction();
          producer.send(new ProducerRecord<>(topic, partition, null, value));
          producer.commitTransaction();
          kept.add(number++);
          say("a " + partition + " " + System.currentTimeMillis() + " " + (System.nanoTime() - sent) / 1000);
          Thread.sleep(pauseMs);
        }
      } catch (InterruptedException | org.apache.kafka.common.errors.InterruptException end) {
        Thread.interrupted();
      } catch (org.apache.kafka.common.KafkaException error) {
        if (going) {
          say("e " + partition + " " + System.currentTimeMillis() + " " + error.getClass().getSimpleName());
        }
      } finally {
        producer.close(Duration.ZERO);
      }
    }
  }

  private void produce(int partition, long pauseMs) {
    Properties properties = ofProducer();
    Set<Long> kept = acknowledged.get(partition);
    KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties);
    try {
      for (long number = 0; going; number++) {
        while (going && resting.contains(partition)) {
          Thread.sleep(pauseMs);
        }
        long mine = number;
        long sent = System.nanoTime();
        byte[] value = ByteBuffer.allocate(VALUE_BYTES).putLong(mine).array();
        producer.send(
            new ProducerRecord<>(topic, partition, null, value),
            (metadata, error) -> {
              long now = System.currentTimeMillis();
              if (error == null) {
                kept.add(mine);
                say("a " + partition + " " + now + " " + (System.nanoTime() - sent) / 1000);
              } else if (going) {
                say("e " + partition + " " + now + " " + error.getClass().getSimpleName());
              }
            });
        Thread.sleep(pauseMs);
      }
    } catch (InterruptedException | org.apache.kafka.common.errors.InterruptException end) {
      Thread.interrupted();
    } finally {
      producer.close(Duration.ZERO);
    }
  }

  private KafkaConsumer<byte[], byte[]> member() {
    Properties properties = ofReader();
    properties.put("group.id", topic);
    properties.put("auto.commit.interval.ms", "1000");
    properties.put("isolation.level", "read_committed");
    KafkaConsumer<byte[], byte[]> made = new KafkaConsumer<>(properties);
    made.subscribe(List.of(topic));
    return made;
  }

  private Properties ofReader() {
    Properties properties = properties();
    properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
    properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
    properties.put("auto.offset.reset", "earliest");
    return properties;
  }

  private KafkaConsumer<byte[], byte[]> reader() {
    Properties properties = ofReader();
    KafkaConsumer<byte[], byte[]> made = new KafkaConsumer<>(properties);
    made.assign(all());
    made.seekToBeginning(made.assignment());
    return made;
  }

  private List<TopicPartition> all() {
    List<TopicPartition> all = new ArrayList<>();
    for (int partition = 0; partition < partitions; partition++) {
      all.add(new TopicPartition(topic, partition));
    }
    return all;
  }

  private void reread() {
    try (KafkaConsumer<byte[], byte[]> rereading = reader()) {
      while (going) {
        if (rereading.poll(Duration.ofMillis(100)).isEmpty()) {
          rereading.seekToBeginning(rereading.assignment());
        }
      }
    } catch (org.apache.kafka.common.errors.InterruptException end) {
      Thread.interrupted();
    }
  }

  private void consume(boolean ofGroup) {
    consumer = ofGroup ? member() : reader();
    try {
      while (going) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
          say("c " + record.partition() + " " + System.currentTimeMillis());
        }
      }
    } catch (WakeupException | org.apache.kafka.common.errors.InterruptException end) {
      Thread.interrupted();
    } finally {
      consumer.close(Duration.ZERO);
      consumer = null;
    }
  }

  private void verify() {
    Map<Integer, Set<Long>> wanted = new HashMap<>();
    long count = 0;
    for (Map.Entry<Integer, Set<Long>> entry : acknowledged.entrySet()) {
      wanted.put(entry.getKey(), new HashSet<>(entry.getValue()));
      count += entry.getValue().size();
    }
    long deadline = System.currentTimeMillis() + VERIFY_TIMEOUT_MS;
    KafkaConsumer<byte[], byte[]> reading = reader();
    try {
      while (lost(wanted) > 0 && System.currentTimeMillis() < deadline) {
        for (ConsumerRecord<byte[], byte[]> record : reading.poll(Duration.ofMillis(200))) {
          wanted.get(record.partition()).remove(ByteBuffer.wrap(record.value()).getLong());
        }
      }
    } finally {
      reading.close(Duration.ZERO);
    }
    say("v " + count + " " + lost(wanted));
  }

  private static long lost(Map<Integer, Set<Long>> wanted) {
    return wanted.values().stream().mapToLong(Set::size).sum();
  }
}
