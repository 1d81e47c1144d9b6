import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Enumeration;
import java.util.List;
import java.util.TreeSet;
import java.util.function.Function;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.hudi.common.config.ConfigProperty;

/** Writes the names of all configuration properties of a bundle, and their earlier names, to a file, one per line. */
public final class ConfigNames implements Function<String, String> {
  @Override
  public String apply(String argument) {
    String[] parts = argument.split("\n");
    TreeSet<String> names = new TreeSet<>();
    try (JarFile jar = new JarFile(parts[0])) {
      Enumeration<JarEntry> entries = jar.entries();
      while (entries.hasMoreElements()) {
        String path = entries.nextElement().getName();
        if (path.startsWith("org/apache/hudi/") && path.endsWith(".class") && !path.startsWith("org/apache/hudi/org/")) {
          add(path.substring(0, path.length() - ".class".length()).replace('/', '.'), names);
        }
      }
      Files.write(Path.of(parts[1]), names);
      return String.valueOf(names.size());
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  private static void add(String name, TreeSet<String> names) {
    try {
      Class<?> holder = Class.forName(name, false, ConfigProperty.class.getClassLoader());
      for (Field field : holder.getDeclaredFields()) {
        if (ConfigProperty.class.isAssignableFrom(field.getType())) {
          field.setAccessible(true);
          Object owner = Modifier.isStatic(field.getModifiers()) ? null : holder.getField("MODULE$").get(null);
          ConfigProperty<?> property = (ConfigProperty<?>) field.get(owner);
          names.add(property.key());
          names.addAll((List<String>) property.getAlternatives());
        }
      }
    } catch (ReflectiveOperationException | LinkageError unavailable) {
      // Classes of Flink, Hive and other engines cannot be loaded, and have no options of Spark jobs.
      return;
    }
  }
}
