import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;

/**
 * Prints the tables of the Apache Kafka on the class path, one fact a line: levels of metadata.version, the record
 * versions that each writes, metadata record types, features, API keys and error codes. By reflection, since the classes
 * have other methods, or other names, in other versions.
 */
public final class KafkaTables {
    private static final String COMMON = "org.apache.kafka.server.common.";

    public static void main(String[] arguments) throws Exception {
        levels();
        features();
        records();
        apis();
        errors();
    }

    private static void levels() throws Exception {
        Class<?> type = Class.forName(COMMON + "MetadataVersion");
        Object last = constant(type, "LATEST_PRODUCTION").orElseThrow();
        Object first = constant(type, "MINIMUM_VERSION").or(() -> constant(type, "MINIMUM_KRAFT_VERSION")).orElseThrow();
        say("minimum", get(first, "featureLevel"));
        say("production", get(last, "featureLevel"));
        for (Object level : type.getEnumConstants()) {
            int number = ((Number) get(level, "featureLevel")).intValue();
            if (number < 1) continue;  // from before KRaft
            say("level", number, get(level, "version"), "changes=" + get(level, "didMetadataChange"));
        }
        List<Method> versions = new ArrayList<>();
        for (Method each : type.getMethods())
            if (each.getName().endsWith("RecordVersion") && each.getReturnType() == short.class) versions.add(each);
        versions.sort(Comparator.comparing(Method::getName));
        for (Method each : versions) {
            Object before = null;
            for (Object level : type.getEnumConstants()) {
                int number = ((Number) get(level, "featureLevel")).intValue();
                Object version;
                try {
                    version = each.invoke(level);
                } catch (java.lang.reflect.InvocationTargetException none) {
                    continue;  // the level has no such record
                }
                if (number >= 1 && !version.equals(before)) {
                    say("writes", each.getName().replaceFirst("Version$", ""), version, "since", number);
                    before = version;
                }
            }
        }
    }

    private static void features() throws Exception {
        Class<?> type;
        try {
            type = Class.forName(COMMON + "Feature");
        } catch (ClassNotFoundException e) {
            try {
                type = Class.forName(COMMON + "Features");
            } catch (ClassNotFoundException none) {
                return;
            }
        }
        if (!type.isEnum()) return;  // 3.7
        for (Object each : type.getEnumConstants()) {
            Object name = get(each, "featureName");
            if (name.toString().contains("test.")) continue;
            Object last = get(each, "latestProduction");
            if (last instanceof Enum) last = get(last, "featureLevel");
            say("feature", name, "production=" + last);
            for (Object level : (Object[]) get(each, "featureVersions"))
                say("feature-level", name, get(level, "featureLevel"),
                    "since=" + get(get(level, "bootstrapMetadataVersion"), "featureLevel"),
                    "needs=" + get(level, "dependencies"));
        }
    }

    private static void records() throws Exception {
        for (Object each : Class.forName("org.apache.kafka.common.metadata.MetadataRecordType").getEnumConstants())
            say("record", get(each, "id"), get(each, "newMetadataRecord").getClass().getSimpleName(),
                get(each, "lowestSupportedVersion") + "-" + get(each, "highestSupportedVersion"));
    }

    private static void apis() throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.common.protocol.ApiKeys");
        for (Object each : type.getEnumConstants()) {
            Object stable = each.getClass().getMethod("latestVersion", boolean.class).invoke(each, false);
            Object message = each.getClass().getField("messageType").get(each);
            String listeners = get(message, "listeners").toString().toLowerCase();
            say("api", each.getClass().getField("id").get(each), each.getClass().getField("name").get(each),
                get(each, "oldestVersion") + "-" + stable, listeners);
        }
    }

    private static void errors() throws Exception {
        Object[] all = Class.forName("org.apache.kafka.common.protocol.Errors").getEnumConstants();
        Arrays.sort(all, Comparator.comparingInt(each -> ((Number) get(each, "code")).intValue()));
        for (Object each : all) say("error", get(each, "code"), each);
    }

    private static Optional<Object> constant(Class<?> type, String name) {
        try {
            return Optional.of(type.getField(name).get(null));
        } catch (ReflectiveOperationException none) {
            return Optional.empty();
        }
    }

    /** Calls a method without arguments, or, where there is none of that name, reads the field. */
    private static Object get(Object of, String name) {
        for (Class<?> type = of.getClass(); type != null; type = type.getSuperclass()) {
            try {
                Method method = type.getDeclaredMethod(name);
                method.setAccessible(true);
                return method.invoke(of);
            } catch (NoSuchMethodException next) {
                try {
                    java.lang.reflect.Field field = type.getDeclaredField(name);
                    field.setAccessible(true);
                    return field.get(of);
                } catch (ReflectiveOperationException none) {
                    continue;
                }
            } catch (ReflectiveOperationException failed) {
                throw new IllegalStateException(of.getClass() + "." + name, failed);
            }
        }
        throw new IllegalStateException(of.getClass() + " has no " + name);
    }

    private static void say(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) line.append(line.length() == 0 ? "" : " ").append(word);
        System.out.println(line);
    }
}
