import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import org.apache.avro.util.Utf8;
import org.apache.hudi.common.model.DeleteRecord;
import org.apache.hudi.common.model.HoodieKey;
import org.apache.hudi.common.util.SerializationUtils;
import org.apache.hudi.common.util.collection.ArrayComparable;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Serialises keys and delete records with Apache Hudi's classes.
 *
 * <p>Each line of stdin describes one block: `version shared entry entry ...`. The program prints the bytes of each
 * block in hex. An entry is `key,partition,class,value[,class,value ...]`. Strings are in Base64; "-" is null. In a
 * `shared` block, equal strings and values are the same object.
 */
public final class DeleteBlocks {
  private final boolean shared;
  private final Map<String, Object> known = new HashMap<>();

  private DeleteBlocks(boolean shared) {
    this.shared = shared;
  }

  public static void main(String[] arguments) throws Exception {
    try (Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8)) {
      while (lines.hasNextLine()) {
        String[] words = lines.nextLine().split(" ");
        byte[] bytes = new DeleteBlocks(Boolean.parseBoolean(words[1])).block(words);
        StringBuilder hex = new StringBuilder();
        for (byte one : bytes) {
          hex.append(String.format("%02x", one));
        }
        System.out.println(hex);
      }
    }
  }

  private byte[] block(String[] words) throws Exception {
    List<HoodieKey> keys = new ArrayList<>();
    List<DeleteRecord> records = new ArrayList<>();
    for (int i = 2; i < words.length; i++) {
      String[] parts = words[i].split(",", -1);
      HoodieKey key = new HoodieKey((String) value("String", parts[0]), (String) value("String", parts[1]));
      keys.add(key);
      List<Comparable<?>> values = new ArrayList<>();
      for (int j = 2; j < parts.length; j += 2) {
        values.add((Comparable<?>) value(parts[j], parts[j + 1]));
      }
      boolean one = values.size() == 1;
      Comparable<?> ordering = one ? values.get(0) : new ArrayComparable(values.toArray(new Comparable[0]));
      records.add(DeleteRecord.create(key, ordering));
    }
    boolean isFirst = words[0].equals("1");
    return SerializationUtils.serialize(isFirst ? keys.toArray(new HoodieKey[0]) : records.toArray(new DeleteRecord[0]));
  }

  private Object value(String name, String text) {
    return shared ? known.computeIfAbsent(name + text, ignored -> made(name, text)) : made(name, text);
  }

  private static Object made(String name, String text) {
    if (text.equals("-")) {
      return null;
    }
    switch (name) {
      case "Integer":
        return Integer.valueOf(text);
      case "Long":
        return Long.valueOf(text);
      case "Float":
        return Float.valueOf(text);
      case "Double":
        return Double.valueOf(text);
      case "Boolean":
        return Boolean.valueOf(text);
      case "BigDecimal":
        return new BigDecimal(text);
      case "LocalDate":
        return LocalDate.ofEpochDay(Long.parseLong(text));
      case "SqlDate":
        return new java.sql.Date(Long.parseLong(text) * 86_400_000L);
      case "Timestamp":
        return new Timestamp(Long.parseLong(text));
      case "Instant":
        return Instant.ofEpochSecond(0, Long.parseLong(text) * 1_000);
      default:
        String decoded = new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
        return name.equals("String") ? decoded
            : name.equals("Utf8") ? new Utf8(decoded) : UTF8String.fromString(decoded);
    }
  }
}
