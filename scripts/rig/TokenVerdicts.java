import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator;
import org.apache.kafka.common.security.oauthbearer.JwtValidatorException;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;

/**
 * Kafka's verdict on tokens: reads lines of 1 or 0, whether an audience and an issuer are expected, and a token; answers
 * each with a line, the principal or why there is none.
 *
 * Arguments: URL of the keys, audience, issuer, skew in seconds.
 */
public final class TokenVerdicts {
    public static void main(String[] arguments) throws Exception {
        BrokerJwtValidator expecting = validator(arguments, true);
        BrokerJwtValidator other = validator(arguments, false);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", 2);
            try {
                OAuthBearerToken token = (parts[0].equals("1") ? expecting : other).validate(parts[1]);
                System.out.println("taken " + token.principalName());
            } catch (JwtValidatorException error) {
                System.out.println("refused " + String.valueOf(error.getMessage()).replace('\n', ' '));
            }
        }
        System.exit(0);
    }

    private static BrokerJwtValidator validator(String[] arguments, boolean expects) {
        Map<String, Object> configs = new HashMap<>();
        configs.put("sasl.oauthbearer.jwks.endpoint.url", arguments[0]);
        configs.put("sasl.oauthbearer.expected.audience", expects ? List.of(arguments[1], "another") : List.of());
        if (expects) {
            configs.put("sasl.oauthbearer.expected.issuer", arguments[2]);
        }
        configs.put("sasl.oauthbearer.clock.skew.seconds", Integer.valueOf(arguments[3]));
        configs.put("sasl.oauthbearer.scope.claim.name", "scope");
        configs.put("sasl.oauthbearer.sub.claim.name", "sub");
        AppConfigurationEntry entry = new AppConfigurationEntry(
            "module", AppConfigurationEntry.LoginModuleControlFlag.REQUIRED, Map.of());
        BrokerJwtValidator found = new BrokerJwtValidator();
        found.configure(configs, "OAUTHBEARER", List.of(entry));
        return found;
    }
}
