import com.google.inject.servlet.GuiceFilter;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.metrics2.AbstractMetric;
import org.apache.hadoop.metrics2.MetricsRecord;
import org.apache.hadoop.metrics2.impl.MetricsCollectorImpl;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * HDFS, and optionally YARN, in one JVM. Arguments: directory, ports of the namenodes separated by commas, number of
 * datanodes, number of nodemanagers, then settings as key=value. It prints `ready` and then answers one line per command
 * that it reads from standard input; it ends with its input.
 */
public class HadoopServer {
  private final MiniDFSCluster cluster;
  private final int[] ports;

  private HadoopServer(MiniDFSCluster cluster, int[] ports) {
    this.cluster = cluster;
    this.ports = ports;
  }

  public static void main(String[] args) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);
    List<Integer> numbers = new ArrayList<>();
    for (String port : args[1].split(",")) {
      numbers.add(Integer.parseInt(port));
    }
    int[] ports = numbers.stream().mapToInt(Integer::intValue).toArray();
    int datanodes = Integer.parseInt(args[2]);
    int nodemanagers = Integer.parseInt(args[3]);
    HdfsConfiguration hdfs = new HdfsConfiguration();
    YarnConfiguration yarn = new YarnConfiguration();
    for (int i = 4; i < args.length; i++) {
      String[] pair = args[i].split("=", 2);
      hdfs.set(pair[0], pair[1]);
      yarn.set(pair[0], pair[1]);
    }
    MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(hdfs, new File(args[0], "dfs"));
    builder.numDataNodes(datanodes).storagesPerDatanode(1).format(true);
    if (ports.length == 1) {
      builder.nameNodePort(ports[0]);
    } else {
      MiniDFSNNTopology.NSConf service = new MiniDFSNNTopology.NSConf("lake");
      for (int i = 0; i < ports.length; i++) {
        service.addNN(new MiniDFSNNTopology.NNConf("nn" + (i + 1)).setIpcPort(ports[i]));
      }
      builder.nnTopology(new MiniDFSNNTopology().addNameservice(service));
    }
    MiniDFSCluster cluster = builder.build();
    if (ports.length > 1) {
      cluster.transitionToActive(0);
    }
    cluster.waitActive();
    if (nodemanagers > 0) {
      yarn.set("fs.defaultFS", "hdfs://127.0.0.1:" + ports[0]);
      cluster.getFileSystem(0).mkdirs(new Path("/tmp"), new FsPermission((short) 01777));
      MiniYARNCluster resources = new MiniYARNCluster("yarn", nodemanagers, 1, 1);
      resources.init(yarn);
      // All web applications of a JVM share one static field. The resource manager's is restored for its REST API.
      Field pipeline = GuiceFilter.class.getDeclaredField("pipeline");
      pipeline.setAccessible(true);
      Object[] first = new Object[1];
      resources.getServices().get(0).registerServiceListener(service -> first[0] = value(pipeline));
      resources.start();
      pipeline.set(null, first[0]);
      if (!resources.waitForNodeManagersToConnect(60_000)) {
        throw new IllegalStateException("the nodemanagers did not connect");
      }
    }
    answers.println("ready");
    answers.flush();
    new HadoopServer(cluster, ports).serve(answers);
    System.exit(0);
  }

  private static Object value(Field field) {
    try {
      return field.get(null);
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }

  private void serve(PrintStream answers) throws Exception {
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String answer;
      try {
        answer = "ok " + answer(line.trim().split(" "));
      } catch (Exception error) {
        answer = "error " + String.valueOf(error).replace('\n', ' ');
      }
      answers.println(answer);
      answers.flush();
    }
  }

  private String answer(String[] words) throws Exception {
    int node = words.length > 1 && words[1].matches("\\d+") ? Integer.parseInt(words[1]) : 0;
    switch (words[0]) {
      case "calls":
        return calls(ports[node]);
      case "safemode":
        files().setSafeMode(SafeModeAction.valueOf(words[1].toUpperCase()));
        return words[1];
      case "stop":
        cluster.shutdownNameNode(node);
        return "";
      case "start":
        cluster.restartNameNode(node, ports.length == 1);
        return "";
      case "active":
        cluster.transitionToActive(node);
        return "";
      case "standby":
        cluster.transitionToStandby(node);
        return "";
      case "quota":
        files().setQuota(new Path(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]));
        return "";
      case "chmod":
        files().setPermission(new Path(words[1]), new FsPermission(words[2]));
        return "";
      case "stop-datanode":
        cluster.stopDataNode(node);
        return "";
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  private DistributedFileSystem files() throws Exception {
    for (int i = 0; i < ports.length; i++) {
      if (cluster.getNameNode(i) != null && cluster.getNameNode(i).isActiveState()) {
        return cluster.getFileSystem(i);
      }
    }
    throw new IllegalStateException("no namenode is active");
  }

  /** Returns the number of RPC calls per method since the start, as `method=number` separated by blanks. */
  private static String calls(int port) throws Exception {
    MetricsCollectorImpl collector = new MetricsCollectorImpl();
    DefaultMetricsSystem.instance().getSource("RpcDetailedActivityForPort" + port).getMetrics(collector, true);
    Map<String, Number> counts = new TreeMap<>();
    for (MetricsRecord record : collector.getRecords()) {
      for (AbstractMetric metric : record.metrics()) {
        boolean counted = metric.name().endsWith("NumOps") && !metric.name().matches("(Deferred|Overall).*");
        if (counted && metric.value().longValue() > 0) {
          counts.put(metric.name().substring(0, metric.name().length() - 6), metric.value());
        }
      }
    }
    StringBuilder text = new StringBuilder();
    counts.forEach((method, count) -> text.append(method).append('=').append(count).append(' '));
    return text.toString().trim();
  }
}
