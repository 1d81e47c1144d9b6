import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import java.util.function.Function;
import org.apache.avro.generic.IndexedRecord;
import org.apache.hudi.client.common.HoodieSparkEngineContext;
import org.apache.hudi.common.config.HoodieMetadataConfig;
import org.apache.hudi.common.data.HoodieListData;
import org.apache.hudi.common.model.HoodieRecord;
import org.apache.hudi.common.table.HoodieTableMetaClient;
import org.apache.hudi.common.table.TableSchemaResolver;
import org.apache.hudi.config.HoodieWriteConfig;
import org.apache.hudi.metadata.HoodieBackedTableMetadata;
import org.apache.hudi.metadata.HoodieMetadataPayload;
import org.apache.hudi.metadata.RawKey;
import org.apache.hudi.metadata.SparkHoodieBackedTableMetadataWriter;
import org.apache.hudi.storage.HoodieStorageUtils;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaSparkContext;

/**
 * Runs Apache Hudi's classes for the metadata table. A request has a verb, a table and an argument, one per line:
 *
 *   records   write all merged records to the file of the argument: metadata partition, tab, record as JSON
 *   build     create the metadata table of a table without one; the argument has write options, key=value;key=value
 */
public class MetadataReferee implements Function<String, String> {
  private static class Prefix implements RawKey {
    public String encode() {
      return "";
    }
  }

  private final HadoopStorageConfiguration conf =
      new HadoopStorageConfiguration(SparkContext.getOrCreate().hadoopConfiguration());

  @Override
  public String apply(String request) {
    String[] words = request.split("\n", 3);
    try {
      if (words[0].equals("records")) {
        records(words[1], words[2]);
      } else {
        build(words[1], words[2]);
      }
      return "";
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
  }

  private HoodieSparkEngineContext context() {
    return new HoodieSparkEngineContext(JavaSparkContext.fromSparkContext(SparkContext.getOrCreate()));
  }

  private HoodieTableMetaClient client(String base) {
    return HoodieTableMetaClient.builder().setConf(conf).setBasePath(base).build();
  }

  private void records(String base, String output) throws Exception {
    HoodieMetadataConfig config = HoodieMetadataConfig.newBuilder().enable(true).build();
    HoodieBackedTableMetadata table =
        new HoodieBackedTableMetadata(context(), HoodieStorageUtils.getStorage(base, conf), config, base);
    StringBuilder lines = new StringBuilder();
    for (String partition : new TreeSet<>(client(base).getTableConfig().getMetadataPartitions())) {
      List<HoodieRecord<HoodieMetadataPayload>> found = table
          .getRecordsByKeyPrefixes(HoodieListData.eager(Collections.singletonList(new Prefix())), partition, true)
          .collectAsList();
      for (HoodieRecord<HoodieMetadataPayload> record : found) {
        IndexedRecord value = (IndexedRecord) record.getData().getInsertValue(null).get();
        lines.append(partition).append('\t').append(value).append('\n');
      }
    }
    table.close();
    Files.write(Paths.get(output), lines.toString().getBytes(StandardCharsets.UTF_8));
  }

  private void build(String base, String options) throws Exception {
    Properties properties = new Properties();
    for (String option : options.split(";")) {
      String[] pair = option.split("=", 2);
      properties.setProperty(pair[0], pair[1]);
    }
    HoodieTableMetaClient client = client(base);
    HoodieWriteConfig config = HoodieWriteConfig.newBuilder()
        .withPath(base)
        .forTable(client.getTableConfig().getTableName())
        .withSchema(new TableSchemaResolver(client).getTableSchema().toString())
        .withProperties(properties)
        .build();
    SparkHoodieBackedTableMetadataWriter.create(conf, config, context()).close();
  }
}
