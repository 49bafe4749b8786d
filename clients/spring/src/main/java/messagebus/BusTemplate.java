package messagebus;

import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.springframework.amqp.core.*;
import org.springframework.amqp.rabbit.connection.*;
import org.springframework.amqp.rabbit.core.RabbitTemplate;

/** Publishing through the balancer: returns when the message is stored and fsynced. */
class BusTemplate {
    private final RabbitTemplate template;

    BusTemplate(CachingConnectionFactory balancer) {
        balancer.setPublisherConfirmType(CachingConnectionFactory.ConfirmType.CORRELATED);
        balancer.setPublisherReturns(true);
        template = new RabbitTemplate(balancer);
        template.setMandatory(true);
    }

    void send(String topic, byte[] body, String id) throws Exception {
        var message = MessageBuilder.withBody(body).setMessageId(id).setContentType("application/json")
                .setDeliveryMode(MessageDeliveryMode.PERSISTENT).build();
        var told = new CorrelationData(UUID.randomUUID().toString());
        template.send("mb.topic/" + topic, "", message, told);
        var confirm = told.getFuture().get(5, TimeUnit.SECONDS); // a timeout is unknown: send it again under its id
        if (!confirm.isAck()) {
            throw new IllegalStateException("refused: " + confirm.getReason());
        }
        if (told.getReturned() != null) {
            throw new IllegalStateException("nobody subscribes to " + topic);
        }
    }
}
